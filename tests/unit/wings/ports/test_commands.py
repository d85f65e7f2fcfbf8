"""What `warmstart plan` and `policy show` say of ports."""

from __future__ import annotations

from pathlib import Path

from tests.lib.command_line import POLICY, answer, installed, run

RULE = "  - {name: meeting, match: {partition: train}, rendezvous: {ports: 20000-29999, per_job: 2}}\n"
TRAIN = ("plan", "--user", "nobody", "--partition", "train")


def test_the_rule_is_shown_where_it_applies(tmp_path: Path) -> None:
    site = installed(tmp_path, POLICY + RULE)
    meant = answer(site, *TRAIN)["own"]["rendezvous"]
    assert [(given["ports"], given["per_job"], given["per_user"]) for given in meant] == [([20000, 29999], 2, 64)]
    assert answer(site, *TRAIN[:-1], "cpu")["own"] == {}
    assert "MASTER_ADDR and MASTER_PORT (20000-29999)" in " ".join(run(site, *TRAIN).stdout.split())
    shown = answer(site, "policy", "show")["policy"]
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
