"""What root says of a step's image, and what becomes of the step."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.lib.policy_site import Compile, defaults
from warmstart.images.reference import parse
from warmstart.paths import Installation
from warmstart.policy.keys import Policy
from warmstart.wings.step_images import asking, maker
from warmstart.wings.step_images.asking import ALONE, BUSY, EXPIRED, FAILED, THERE, Answer, ImageDeclined

REFERENCE = parse("reg.example.com/a:1")
POLICY = "version: 1\npaths: {store: /shared/warmstart}\n"
ROOTS_WORD = {
    "there": (Answer(THERE, "/store/a.sqsh"), "wait", "/store/a.sqsh"),
    "nobody asks root": (Answer(ALONE), "wait", ""),
    "for whoever is known to the registry": (Answer(FAILED, kind="user", code="image-forbidden"), "wait", ""),
    "not soon enough": (Answer(FAILED, kind="store", code=EXPIRED), "import", ""),
    "too many": (Answer(BUSY), "import", ""),
    "never": (Answer(FAILED, kind="store", code=EXPIRED, text="late", hint="wait"), "wait", None),
    "too many for ever": (Answer(BUSY), "wait", None),
    "the user's fault": (Answer(FAILED, kind="user", code="image-too-large", text="large"), "wait", None),
    "the site's": (Answer(FAILED, kind="store", code="store-full", text="full", hint="wait"), "wait", None),
    "the store is gone": (Answer(FAILED, kind="store", code="store-failed"), "wait", ""),
}


def made(policy: Policy) -> str | ImageDeclined:
    """Return what the importer gets, an image's path or nothing, or is told."""
    try:
        found = maker.make(Installation("/nonexistent"), REFERENCE, policy, lambda: "")
        return found.path if found else ""
    except ImageDeclined as error:
        return error


@pytest.mark.parametrize("case", ROOTS_WORD)
def test_what_root_says_decides(
    compiled_of: Compile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, case: str
) -> None:
    """As a prolog's verdict; where the policy lets jobs run without their image, the step's user imports it."""
    answer, after_wait, expected = ROOTS_WORD[case]
    monkeypatch.setenv("ENROOT_CONFIG_PATH", str(tmp_path))
    (tmp_path / ".credentials").write_text("machine reg.example.com login carol password x\n")
    monkeypatch.setenv("SLURM_STEP_NODELIST", "n[1-2]")
    waits: list[bool] = []

    def obtain(*_: object, waits_on: bool, nodes: str) -> Answer:
        assert nodes == "n[1-2]"
        waits.append(waits_on)
        return answer

    monkeypatch.setattr(asking, "obtain", obtain)
    policy = compiled_of(f"{POLICY}step_images: {{after_wait: {after_wait}}}\n")
    said = made(policy)
    assert waits == [after_wait == "wait"]
    if expected is None:
        assert isinstance(said, ImageDeclined)
        assert all(text in str(said) for text in (answer.text, answer.hint))
    else:
        assert said == expected
    without = made(policy._replace(on_error=policy.on_error._replace(image="run-without")))
    assert (without == "") == (case not in ("there", "the user's fault"))


@pytest.mark.parametrize("code", ["image-forbidden", "image-not-found"])
def test_who_has_no_credentials_is_told_what_root_was_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: str
) -> None:
    """The registry is not asked a second time for the same answer."""
    monkeypatch.setenv("ENROOT_CONFIG_PATH", str(tmp_path / "none"))
    answer = Answer(FAILED, kind="user", code=code, text="there is no such image", hint="check its name")
    monkeypatch.setattr(asking, "obtain", lambda *_, **_options: answer)
    said = made(defaults())
    assert str(said) == "there is no such image\nwarmstart: check its name"
