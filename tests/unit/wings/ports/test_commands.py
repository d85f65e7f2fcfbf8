"""What `warmstart plan` and `policy show` say of ports."""

from __future__ import annotations

from pathlib import Path

from tests.lib.command_line import POLICY, answer, installed, run

RULE = "  - {name: meeting, match: {partition: train}, rendezvous: {ports: 20000-29999, per_job: 2}}\n"


TRAIN = ("plan", "--user", "nobody", "--partition", "train")


def test_the_rule_is_shown_where_it_applies(tmp_path: Path) -> None:
    """With its range and limits, and only on its partition."""
    site = installed(tmp_path, POLICY + RULE)
    assert answer(site, *TRAIN)["own"]["rendezvous"] == [{
        "ports": [20000, 29999], "per_job": 2, "per_user": 64, "shared_nodes": False, "wait": 20, "required": False,
    }]  # fmt: skip
    assert answer(site, *TRAIN[:-1], "cpu")["own"] == {}
    assert "MASTER_ADDR and MASTER_PORT (20000-29999)" in " ".join(run(site, *TRAIN).stdout.split())


def test_a_job_that_asks_is_told_what_it_gets(tmp_path: Path) -> None:
    """The step, or the verdict with the number of ports allowed."""
    site = installed(tmp_path, POLICY + RULE)
    asking = answer(site, *TRAIN, "--comment", "warmstart: ports=2")
    assert "rendezvous" in asking["steps"]["prolog"]
    assert "ports=" in asking["words"]
    refused = run(site, *TRAIN, "--comment", "warmstart: ports=3")
    assert refused.exit_code == 1
    assert "asks for 3 ports; it may have 2" in " ".join(refused.stdout.split())


def test_the_policy_shows_it_with_its_rule(tmp_path: Path) -> None:
    """As an admin wrote it, with what was left out."""
    shown = answer(installed(tmp_path, POLICY + RULE), "policy", "show")["policy"]
    assert shown["rules"][-1]["own"]["rendezvous"]["per_user"] == 64


def test_where_no_rule_offers_any_a_job_that_asks_is_refused(tmp_path: Path) -> None:
    """By the word's own sentence; the word is not among those that a comment may have."""
    assert "ports=" not in answer(installed(tmp_path), *TRAIN)["words"]
    refused = run(installed(tmp_path), *TRAIN, "--comment", "warmstart: ports=2")
    assert refused.exit_code == 1
    assert "ports are not offered on this cluster" in " ".join(refused.stdout.split())
