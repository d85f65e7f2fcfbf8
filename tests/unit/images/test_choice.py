"""Every importer of the table is one that the policy can name, and is complete."""

from __future__ import annotations

import os
from pathlib import Path
from typing import get_args

import pytest

from tests.lib.image_site import RULES
from warmstart.host.identity import Identity
from warmstart.images import choice
from warmstart.policy.schema import Images

IDENTITY = Identity("warmstart-import", 64211, 64211)


def test_the_policy_can_name_every_importer() -> None:
    assert {*get_args(Images.model_fields["importer"].annotation)} == {"auto", *choice.IMPORTERS}


@pytest.mark.parametrize("name", sorted(choice.IMPORTERS))
def test_every_importer_is_complete(name: str) -> None:
    importer = choice.choose(RULES._replace(importer=name), IDENTITY, "/cache")
    assert (importer.name, importer.identity) == (name, IDENTITY)
    assert callable(importer.resolve)
    assert callable(importer.import_image)
    assert choice.programs(name)
    assert all(os.path.isabs(program) for program in choice.programs(name))
    assert choice.recipe(name) == f"{name}{choice.IMPORTERS[name]}"


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


def test_oci_and_enroot_differ_by_the_programs_that_auto_looks_for() -> None:
    oci, enroot = {*choice.programs("oci")}, {*choice.programs("enroot")}
    assert (oci - enroot, enroot - oci) == ({choice.UMOCI}, {choice.ENROOT})


def test_a_name_that_the_policy_would_refuse() -> None:
    with pytest.raises(ValueError, match="docker"):
        choice.choose(RULES._replace(importer="docker"), IDENTITY, "")
