"""`warmstart plan`: it shows what a prolog would decide, and changes nothing."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.lib.command_line import POLICY, answer, installed, run
from warmstart.doctor.containers import NOT_UNPACKING, PYXIS, UNPACKING
from warmstart.paths import Installation

NOBODY = ("plan", "--user", "nobody")


@pytest.fixture
def site(tmp_path: Path) -> Installation:
    """Return an installation with a small policy."""
    return installed(tmp_path)


def test_rules_say_whether_they_apply_and_why(site: Installation) -> None:
    """Every rule is shown, with its position in the file."""
    rules = answer(site, *NOBODY, "--partition", "cpu")["rules"]
    assert [(rule["name"], rule["matched"]) for rule in rules] == [("everyone", True), ("gpu", False)]
    assert rules[1]["reason"] == "partition 'cpu' is not 'gpu*'"
    assert rules[1]["place"] == f"{site.policy}:10"


def test_a_job_is_shown_all_that_it_gets(site: Installation) -> None:
    """Images of the job and the policy, profiles with variables, scopes, environment, limits, steps."""
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
    assert found["steps"]["epilog"] == ["harvest", "release", "spool"]
    assert (found["verdict"], found["off"], found["nothing_because"]) == (None, False, "")


@pytest.mark.parametrize(
    ("lines", "way"),
    [("use_squashfuse=1", NOT_UNPACKING), ("use_squashfuse=0", UNPACKING), ("", UNPACKING), (None, "")],
)
def test_how_containers_start_is_told(
    site: Installation, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, lines: str | None, way: str
) -> None:
    """By pyxis's line on this host, and only of a job with an image."""
    (tmp_path / "plugstack.conf").write_text("" if lines is None else f"required {PYXIS} {lines}\n")
    conf = tmp_path / "slurm.conf"
    monkeypatch.setenv("SLURM_CONF", str(conf))
    image = (*NOBODY, "--image", "reg.example.com/mine")

    def told(*job: str) -> set[str]:
        return {*answer(site, *job)["remarks"]} & {UNPACKING, NOT_UNPACKING}

    assert told(*image) == set()  # a login node may have no slurm.conf
    conf.write_text("ClusterName=c\n")
    assert told(*image) == ({way} if way else set())
    assert told(*NOBODY) == set()


def test_the_profiles_that_a_job_may_ask_for_are_listed(site: Installation) -> None:
    """As the hint of a job that is refused for one says; declared files are asked for by another word."""
    offered = answer(site, *NOBODY)["offered"]
    assert ({"numba", "triton"} <= {*offered}, "files" in offered) == (True, False)
    said = run(site, *NOBODY, "--comment", "warmstart: profiles=numab").stdout
    assert "A job may ask for the profiles " in " ".join(said.split())


def test_the_words_of_a_comment_are_listed(site: Installation) -> None:
    """As the hint of a job whose comment is refused says: those of wings where the policy uses them."""
    words = answer(site, *NOBODY)["words"]
    assert {"image=", "cache=", "fresh", "off"} <= {*words}
    said = run(site, *NOBODY, "--comment", "warmstart: imag=app").stdout
    assert f"words {' '.join(words)}." in " ".join(said.split())


def test_a_comment_without_a_colon_is_told(site: Installation) -> None:
    """As the job would be."""
    told = answer(site, *NOBODY, "--comment", "warmstart fresh")["remarks"]
    assert "'warmstart fresh' without a colon" in told[0]


def test_a_cache_with_a_name_is_shown(site: Installation) -> None:
    """As the fact that parts the namespaces, in tables, too."""
    asked = ("--partition", "gpu1", "--comment", "warmstart: cache=spec")
    assert answer(site, *NOBODY, *asked)["cache"] == "spec"
    assert "; the caches' name: spec" in run(site, "plan", "--user", "nobody", *asked).stdout


def test_a_private_image_is_said_to_be_one(tmp_path: Path) -> None:
    """Only for those whom the policy binds it to."""
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


def test_people_see_the_same_in_tables(site: Installation) -> None:
    """The text has rules, images, variables, scopes and steps."""
    result = run(site, *NOBODY, "--partition", "gpu1")
    assert result.exit_code == 0
    for text in ("partition 'gpu1' matches 'gpu*'", "reg.example.com/base/app:1", "NUMBA_CACHE_DIR", "EAGER",
                 "user-65534-nobody", "workspace → image → seed → environment", "harvest → release"):  # fmt: skip
        assert text in result.stdout


def test_a_job_can_be_described_by_what_only_the_controller_knows(tmp_path: Path) -> None:
    """QOS and job name are options; without them the job has none."""
    site = installed(tmp_path, f"{POLICY}  - {{name: nightly, match: {{qos: hi}}}}\n")
    options = ("--qos", "hi", "--job-name", "nightly")
    assert answer(site, *NOBODY, *options)["rules"][-1]["matched"] is True
    assert "job_name nightly" in run(site, *NOBODY, *options).stdout
    assert answer(site, *NOBODY)["rules"][-1]["matched"] is False


def test_what_a_job_may_not_set(tmp_path: Path) -> None:
    """Variables that the user cannot set are listed."""
    rule = "  - {name: forced, override: [NUMBA_CACHE_DIR, CUDA_MODULE_LOADING]}\n"
    text = run(installed(tmp_path, f"{POLICY}{rule}"), *NOBODY).stdout
    assert "override: CUDA_MODULE_LOADING, NUMBA_CACHE_DIR" in text


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
    """The verdict is the prolog's own."""
    result = run(site, *NOBODY, *arguments)
    assert result.exit_code == 1
    verdict = answer(site, *NOBODY, *arguments)["verdict"]
    assert verdict["kind"] == "user"
    assert verdict["reason"] in result.stdout
    assert code is None or verdict["code"] == code


@pytest.mark.threat(20)
def test_escapes_in_a_comment_do_not_reach_the_terminal(site: Installation) -> None:
    """Control characters of a user's text are shown as escapes."""
    result = run(site, *NOBODY, "--comment", "\x1b[2Jhello\n")
    assert r"\x1b[2Jhello" in result.stdout
    assert "\x1b" not in result.output


def test_a_job_of_a_system_account_gets_nothing_and_is_told_why(site: Installation) -> None:
    """limits.min_uid is shown as the reason."""
    result = run(site, "plan", "--user", "root", "--image", "evil.example.com/app")
    assert result.exit_code == 0
    assert "does nothing for this job: uid 0 is below limits.min_uid" in result.stdout


def test_a_job_that_no_rule_gives_anything(tmp_path: Path) -> None:
    """A policy without rules leaves every job alone."""
    site = installed(tmp_path, POLICY.partition("rules:")[0])
    result = run(site, *NOBODY)
    assert result.exit_code == 0
    assert "does nothing for this job: no rule matches it on this node" in result.stdout
    site = installed(tmp_path / "named", f"{POLICY.partition('rules:')[0]}rules: [{{name: all}}]\n")
    assert "No rule gives this job anything" in run(site, *NOBODY).stdout


def test_nothing_is_written(site: Installation) -> None:
    """No compiled policy and no directory appears."""
    before = sorted(os.walk(site.prefix))
    run(site, *NOBODY, "--partition", "gpu1", "--image", "reg.example.com/mine")
    assert sorted(os.walk(site.prefix)) == before


def test_a_broken_policy_and_an_unknown_user_are_status_2(tmp_path: Path) -> None:
    """There is no preview without a policy."""
    site = installed(tmp_path, "version: 2\n")
    assert run(site, *NOBODY).exit_code == 2
    assert run(installed(tmp_path), "plan", "--user", "no-such-user").exit_code == 2


def test_a_job_that_is_only_observed_is_said_to_be(tmp_path: Path) -> None:
    """The plan itself is the same."""
    site = installed(tmp_path, f"{POLICY}mode: observe\n")
    found = answer(site, *NOBODY)
    assert (found["mode"], found["steps"]["prolog"]) == ("observe", ["workspace", "seed", "environment"])
    assert "Observed: hooks write into the audit log" in run(site, *NOBODY).stdout


def test_the_off_switch_is_mentioned(site: Installation) -> None:
    """The plan says that no hook follows it."""
    Path(site.off_switch).touch()
    assert "switched off" in run(site, *NOBODY).stderr
    assert answer(site, *NOBODY)["off"] is True


def test_a_policy_that_a_user_may_not_read_is_said_to_be_one(
    site: Installation, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Users get another hint than root (tests/node)."""
    Path(site.policy).unlink()
    user = os.getuid() or 65534
    monkeypatch.setattr(os, "geteuid", lambda: user)
    result = run(site, *NOBODY)
    assert result.exit_code == 2
    assert "run the command as root" in result.stderr
