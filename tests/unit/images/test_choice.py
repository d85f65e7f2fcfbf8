"""Every importer of the table is one that the policy can name, and is complete."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.lib.image_site import RULES
from warmstart.host.identity import Identity
from warmstart.images import choice

IDENTITY = Identity("warmstart-import", 64211, 64211)


@pytest.mark.parametrize(
    ("there", "shared", "own"),
    [
        ((), "oci", "oci"),
        (("umoci",), "oci", "oci"),
        (("enroot",), "enroot", "enroot"),
        (("enroot", "umoci"), "oci", "enroot"),
    ],
)
def test_auto_is_oci_where_its_programs_are(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, there: tuple[str, ...], shared: str, own: str
) -> None:
    monkeypatch.setattr(choice, "ENROOT", str(tmp_path / "enroot"))
    monkeypatch.setattr(choice, "UMOCI", str(tmp_path / "umoci"))
    for name in there:
        (tmp_path / name).touch()
    assert (choice.choose(RULES, IDENTITY, "").name, choice.installed("auto")) == (shared, shared)
    assert choice.recipe("auto") == {"oci": "oci2", "enroot": "enroot1"}[shared]
    assert choice.programs("auto") == choice.programs(shared)
    assert choice.installed(choice.of_user("auto")) == own
    assert (choice.of_user("oci"), choice.of_user("enroot")) == ("oci", "enroot")


def test_a_name_that_the_policy_would_refuse() -> None:
    with pytest.raises(ValueError, match="docker"):
        choice.choose(RULES._replace(importer="docker"), IDENTITY, "")
