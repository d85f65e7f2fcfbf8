"""`warmstart plan`: it shows what a prolog would decide, and changes nothing."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.lib.command_line import POLICY, answer, installed, run
from warmstart.doctor.containers import NOT_UNPACKING, UNPACKING
from warmstart.doctor.slurm import PYXIS
from warmstart.paths import Installation

NOBODY = ("plan", "--user", "nobody")


@pytest.fixture
def site(tmp_path: Path) -> Installation:
    return installed(tmp_path)


def test_rules_say_whether_they_apply_and_why(site: Installation) -> None:
    rules = answer(site, *NOBODY, "--partition", "cpu")["rules"]
    assert [(rule["name"], rule["matched"]) for rule in rules] == [("everyone", True), ("gpu", False)]
    assert rules[1]["reason"] == "partition 'cpu' is not 'gpu*'"


def test_a_job_is_shown_all_that_it_gets(site: Installation) -> None:
    comment = "warmstart: image=reg.example.com/mine profiles=inductor"
    found = answer(site, *NOBODY, "--partition", "gpu1", "--comment", comment)
    assert [(image["image"], image["from"], image["allowed"]) for image in found["images"]] == [
        ("reg.example.com/mine:latest", "job", True),
        ("reg.example.com/base/app:1", "policy", True),
    ]
    assert [(profile["name"], profile["from"]) for profile in found["profiles"]] == [
        ("numba", "policy"),
        ("inductor", "job"),
    ]
    assert found["profiles"][0]["variables"] == {"NUMBA_CACHE_DIR": "$WARMSTART_CACHE/numba"}
    assert found["scopes"] == {"read": ["user-65534-nobody"], "publish": "user-65534-nobody"}
    assert found["environment"] == {"CUDA_MODULE_LOADING": "EAGER"}
    assert found["steps"]["prolog"] == ["workspace", "image", "seed", "environment"]
    assert found["steps"]["epilog"] == ["harvest", "release"]
    assert (found["verdict"], found["off"], found["nothing_because"]) == (None, False, "")


@pytest.mark.parametrize(
    ("lines", "way"),
    [("use_squashfuse=1", NOT_UNPACKING), ("use_squashfuse=0", UNPACKING), ("", UNPACKING), (None, "")],
)
def test_how_containers_start_is_told(
    site: Installation, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, lines: str | None, way: str
) -> None:
    """By pyxis's line on this host, and only of a job with an image."""
    monkeypatch.setenv("SLURM_CONF", str(tmp_path / "slurm.conf"))
    image = (*NOBODY, "--image", "reg.example.com/mine")

    def told(*job: str) -> set[str]:
        return {*answer(site, *job)["remarks"]} & {UNPACKING, NOT_UNPACKING}

    assert told(*image) == set()  # a login node may have no files of Slurm
    (tmp_path / "plugstack.conf").write_text("" if lines is None else f"required {PYXIS} {lines}\n")
    assert told(*image) == ({way} if way else set())
    assert told(*NOBODY) == set()


def test_the_words_of_a_comment_are_listed(site: Installation) -> None:
    words = answer(site, *NOBODY)["words"]
    assert {"image=", "cache=", "fresh", "off"} <= {*words}
    said = run(site, *NOBODY, "--comment", "warmstart: imag=app").stdout
    assert f"words {' '.join(words)}." in " ".join(said.split())


def test_a_private_image_is_said_to_be_one(tmp_path: Path) -> None:
    bound = """images:
  registries: [reg.example.com]
  credentials:
    file: /etc/warmstart/credentials.json
    repositories: [{name: team, repository: "reg.example.com/team/*", match: {partition: gpu1}}]
"""
    site = installed(tmp_path, POLICY.replace("images: {registries: [reg.example.com]}\n", bound))
    comment = "warmstart: image=reg.example.com/team/app"
    for partition, private in (("gpu1", "team"), ("cpu", "")):
        found = answer(site, *NOBODY, "--partition", partition, "--comment", comment)["images"]
        assert [image["private"] for image in found if image["from"] == "job"] == [private]
    assert "team" in run(site, *NOBODY, "--partition", "gpu1", "--comment", comment).stdout


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (("--image", "evil.example.com/app"), "image-refused"),
        (("--image", "UPPER"), "image-reference-invalid"),
        (("--comment", "warmstart: sudo=yes"), "request-invalid"),
        (("--comment", "warmstart: profiles=numbers"), None),
    ],
)
def test_a_refused_job_is_status_1_with_the_sentence_it_would_get(
    site: Installation, arguments: tuple[str, ...], code: str | None
) -> None:
    result = run(site, *NOBODY, *arguments)
    assert result.exit_code == 1
    verdict = answer(site, *NOBODY, *arguments)["verdict"]
    assert verdict["kind"] == "user"
    assert verdict["reason"] in result.stdout
    assert code is None or verdict["code"] == code


@pytest.mark.threat(20)
def test_escapes_in_a_comment_do_not_reach_the_terminal(site: Installation) -> None:
    result = run(site, *NOBODY, "--comment", "\x1b[2Jhello\n")
    assert r"\x1b[2Jhello" in result.stdout
    assert "\x1b" not in result.output


def test_a_job_that_no_rule_gives_anything(tmp_path: Path) -> None:
    site = installed(tmp_path, POLICY.partition("rules:")[0])
    result = run(site, *NOBODY)
    assert result.exit_code == 0
    assert "does nothing for this job: no rule matches it on this node" in result.stdout
    site = installed(tmp_path / "named", f"{POLICY.partition('rules:')[0]}rules: [{{name: all}}]\n")
    assert "No rule gives this job anything" in run(site, *NOBODY).stdout


def test_nothing_is_written(site: Installation) -> None:
    before = sorted(os.walk(site.prefix))
    run(site, *NOBODY, "--partition", "gpu1", "--image", "reg.example.com/mine")
    assert sorted(os.walk(site.prefix)) == before


def test_a_broken_policy_and_an_unknown_user_are_status_2(tmp_path: Path) -> None:
    site = installed(tmp_path, "version: 2\n")
    assert run(site, *NOBODY).exit_code == 2
    assert run(installed(tmp_path), "plan", "--user", "no-such-user").exit_code == 2


def test_a_job_that_is_only_observed_is_said_to_be(tmp_path: Path) -> None:
    site = installed(tmp_path, f"{POLICY}mode: observe\n")
    found = answer(site, *NOBODY)
    assert (found["mode"], found["steps"]["prolog"]) == ("observe", ["workspace", "seed", "environment"])
    assert "Observed: hooks write into the audit log" in run(site, *NOBODY).stdout


def test_the_off_switch_is_mentioned(site: Installation) -> None:
    Path(site.off_switch).touch()
    assert "switched off" in run(site, *NOBODY).stderr
    assert answer(site, *NOBODY)["off"] is True


def test_what_a_job_may_not_set(tmp_path: Path) -> None:
    rule = "  - {name: forced, override: [NUMBA_CACHE_DIR, CUDA_MODULE_LOADING]}\n"
    text = run(installed(tmp_path, f"{POLICY}{rule}"), *NOBODY).stdout
    assert "override: CUDA_MODULE_LOADING, NUMBA_CACHE_DIR" in text
