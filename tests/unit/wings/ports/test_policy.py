"""The policy's `rendezvous`: ranges that can hold, on attributes that users can't write; what commands show of it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.lib.command_line import POLICY, answer, installed, run
from tests.lib.policy_site import Compile, Site, refusals
from tests.lib.runs import a_job
from tests.lib.wings.ports.values import a_rendezvous
from warmstart.policy.match import combine, matching
from warmstart.policy.units import parse_ports
from warmstart.wings.ports import ledger, step

HEAD = "version: 1\npaths: {store: /shared/warmstart}\nrules:\n"


@pytest.fixture(autouse=True)
def usual_range(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Give this node the kernel's default range for clients, whatever the host has."""
    (tmp_path / "range").write_text("32768\t60999\n")
    monkeypatch.setattr(ledger, "EPHEMERAL", str(tmp_path / "range"))


@pytest.mark.parametrize(
    ("keys", "match", "key", "words"),
    [
        ("", "", "rendezvous.ports", "missing"),
        ("ports: 20000", "", "rendezvous.ports", "is not a range of ports"),
        ("ports: 80-20000", "", "rendezvous.ports", "is not a range of ports"),
        ("ports: 1000-2000", "", "rendezvous.ports", "between 1024 and"),
        ("ports: 29999-20000", "", "rendezvous.ports", "between 1024 and"),
        ("ports: 61000-70000", "", "rendezvous.ports", "between 1024 and"),
        ("ports: 20000-20007", "", "rendezvous.ports", "per_job: 8"),
        ("ports: 30000-32768", "", "rendezvous.ports", "ip_local_port_range, 32768-60999"),
        ("ports: 60999-65535", "", "rendezvous.ports", "ip_local_port_range, 32768-60999"),
        ("ports: 2000-3000, per_user: 8", "", "rendezvous.per_user", "more than per_job"),
        ("ports: 20000-29999", "account: x", "match.account", "claimed attribute"),
    ],
)
def test_what_cannot_hold_is_refused(site: Site, keys: str, match: str, key: str, words: str) -> None:
    (problem,) = refusals(site, f"{HEAD}  - name: a\n    match: {{{match}}}\n    rendezvous: {{{keys}}}\n")
    assert f" rules[0].{key}: " in problem
    assert words in problem


def test_the_last_rule_that_has_one_holds_as_a_whole(compiled_of: Compile) -> None:
    """Defaults fill what the later rule does not say, not the earlier rule's values."""
    first = "  - {name: a, rendezvous: {ports: 20000-29999, wait: 5s, required: true}}\n"
    second = "  - {name: b, match: {partition: main}, rendezvous: {ports: 10000-19999, shared_nodes: true}}\n"
    policy = compiled_of(HEAD + first + second + "  - {name: c}\n")
    main, other = (
        step.granted(combine(policy, matching(policy, job, list), job))
        for job in (a_job(partition="main"), a_job(partition="other"))
    )
    assert main == a_rendezvous(ports=(10000, 19999), shared_nodes=True)
    assert other == a_rendezvous(ports=(20000, 29999), wait=5, required=True)


@given(st.integers(1024, 65535), st.integers(0, 64511))
def test_every_range_is_read_as_it_is_written(low: int, more: int) -> None:
    high = min(low + more, 65535)
    assert parse_ports(f"{low}-{high}") == (low, high)


RULE = "  - {name: meeting, match: {partition: train}, rendezvous: {ports: 20000-29999, per_job: 2}}\n"
TRAIN = ("plan", "--user", "nobody", "--partition", "train")


def test_the_rule_is_shown_where_it_applies(tmp_path: Path) -> None:
    site = installed(tmp_path, POLICY + RULE)
    meant = answer(site, *TRAIN)["own"]["rendezvous"]
    assert [(given["ports"], given["per_job"], given["per_user"]) for given in meant] == [([20000, 29999], 2, 64)]
    assert answer(site, *TRAIN[:-1], "cpu")["own"] == {}
    assert "MASTER_ADDR and MASTER_PORT (20000-29999)" in " ".join(run(site, *TRAIN).stdout.split())
    shown = json.loads(run(site, "policy", "show").stdout)["policy"]
    assert shown["rules"][-1]["own"]["rendezvous"]["per_user"] == 64


def test_a_job_that_asks_is_told_what_it_gets(tmp_path: Path) -> None:
    site = installed(tmp_path, POLICY + RULE)
    asking = answer(site, *TRAIN, "--comment", "warmstart: ports=2")
    assert "rendezvous" in asking["steps"]["prolog"]
    assert "ports=" in asking["words"]
    refused = run(site, *TRAIN, "--comment", "warmstart: ports=3")
    assert refused.exit_code == 1
    assert "asks for 3 ports; it may have 2" in " ".join(refused.stdout.split())


def test_where_no_rule_offers_any_a_job_that_asks_is_refused(tmp_path: Path) -> None:
    site = installed(tmp_path)
    assert "ports=" not in answer(site, *TRAIN)["words"]
    refused = run(site, *TRAIN, "--comment", "warmstart: ports=2")
    assert refused.exit_code == 1
    assert "ports are not offered on this cluster" in " ".join(refused.stdout.split())
