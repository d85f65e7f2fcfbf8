"""The policy's `rendezvous`: ranges that can hold, on attributes that users can't write."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.lib.policy_site import Compile, Site
from tests.lib.runs import a_job
from tests.lib.wings.ports.values import a_rendezvous
from warmstart.policy.invalid import PolicyInvalid
from warmstart.policy.match import combine, matching
from warmstart.policy.units import parse_ports
from warmstart.wings.ports import ledger, step

HEAD = "version: 1\npaths: {store: /shared/warmstart}\nrules:\n"


@pytest.fixture(autouse=True)
def usual_range(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Give this node the kernel's default range for clients, whatever the host has."""
    (tmp_path / "range").write_text("32768\t60999\n")
    monkeypatch.setattr(ledger, "EPHEMERAL", str(tmp_path / "range"))


def rule(keys: str, match: str = "{}") -> str:
    """Return a policy with one rule on rendezvous."""
    return f"{HEAD}  - name: a\n    match: {match}\n    rendezvous: {{{keys}}}\n"


@pytest.mark.parametrize(
    ("text", "refusal"),
    [
        (rule(""), "6:17: rules[0].rendezvous.ports: missing"),
        (rule("ports: 20000"), "6:25: rules[0].rendezvous.ports: 20000 is not a range of ports; write the first"),
        (rule("ports: 80-20000"), "6:25: rules[0].rendezvous.ports: '80-20000' is not a range of ports"),
        (rule("ports: 1000-2000"), "6:25: rules[0].rendezvous.ports: '1000-2000': write a range between 1024 and"),
        (rule("ports: 29999-20000"), "6:25: rules[0].rendezvous.ports: '29999-20000': write a range between"),
        (rule("ports: 61000-70000"), "6:25: rules[0].rendezvous.ports: '61000-70000': write a range between"),
        (rule("ports: 20000-20007"), "6:25: rules[0].rendezvous.ports: has fewer ports than one job may request"),
        (
            rule("ports: 30000-32768"),
            "6:25: rules[0].rendezvous.ports: overlaps this node's net.ipv4.ip_local_port_range, 32768-60999",
        ),
        (rule("ports: 60999-65535"), "6:25: rules[0].rendezvous.ports: overlaps this node's"),
        (rule("ports: 2000-3000, per_user: 8"), "6:46: rules[0].rendezvous.per_user: must be more than per_job, 8"),
        (
            rule("ports: 20000-29999", "{account: x}"),
            "5:13: rules[0].match.account: rendezvous may not depend on a claimed attribute; match on user, group or",
        ),
    ],
)
def test_what_cannot_hold_is_refused(site: Site, text: str, refusal: str) -> None:
    """Root's ports, the kernel's ports, ends that are swapped, limits that one job exceeds, claimed attributes."""
    site.write(text)
    with pytest.raises(PolicyInvalid) as refused:
        site.compiled()
    (problem,) = str(refused.value).splitlines()
    assert problem.partition("policy.yaml:")[2].startswith(refusal)


def test_the_last_rule_that_has_one_holds_as_a_whole(compiled_of: Compile) -> None:
    """Defaults fill what the later rule does not say, not the earlier rule's values."""
    first = "  - {name: a, rendezvous: {ports: 20000-29999, wait: 5s, required: true}}\n"
    second = "  - {name: b, match: {partition: main}, rendezvous: {ports: 10000-19999, shared_nodes: true}}\n"
    policy = compiled_of(HEAD + first + second + "  - {name: c}\n")
    found = {
        partition: step.granted(combine(policy, matching(policy, job, list), job))
        for partition in ("main", "other")
        for job in [a_job(partition=partition)]
    }
    assert found == {
        "main": a_rendezvous(ports=(10000, 19999), shared_nodes=True),
        "other": a_rendezvous(ports=(20000, 29999), wait=5, required=True),
    }


def test_jobs_that_get_nothing_get_no_ports(compiled_of: Compile) -> None:
    """Neither a system account's nor one submitted with --no-warm."""
    policy = compiled_of(HEAD + "  - {name: a, rendezvous: {ports: 20000-29999}}\n")
    for job in (a_job(uid=7), a_job(no_warm=True)):
        assert step.granted(combine(policy, matching(policy, job, list), job)) is None


@given(st.integers(1024, 65535), st.integers(0, 64511))
def test_every_range_is_read_as_it_is_written(low: int, more: int) -> None:
    """Both ends are included, and one port is a range."""
    high = min(low + more, 65535)
    assert parse_ports(f"{low}-{high}") == (low, high)
