"""Every importer of the table is one that the policy can name, and is complete."""

from __future__ import annotations

import os
from pathlib import Path
from typing import get_args

import pytest

from tests.support.image_site import RULES
from warmstart.host.identity import Identity
from warmstart.images import choice
from warmstart.policy.schema import Images

IDENTITY = Identity("warmstart-import", 64211, 64211)


def test_the_policy_can_name_every_importer() -> None:
    """`images.importer` of the schema, and the table of the importers."""
    assert {*get_args(Images.model_fields["importer"].annotation)} == {"auto", *choice.IMPORTERS}


@pytest.mark.parametrize("name", sorted(choice.IMPORTERS))
def test_every_importer_is_complete(name: str) -> None:
    """Its module makes it for an account, with the policy's rules; doctor knows its programs."""
    importer = choice.choose(RULES._replace(importer=name), IDENTITY, "/cache")
    assert (importer.name, importer.identity) == (name, IDENTITY)
    assert callable(importer.resolve)
    assert callable(importer.import_image)
    assert choice.programs(name)
    assert all(os.path.isabs(program) for program in choice.programs(name))
    assert choice.recipe(name) == f"{name}{choice.IMPORTERS[name].recipe}"


def test_auto_is_enroot_where_it_is(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """`auto` looks for the program."""
    monkeypatch.setattr(choice, "ENROOT", str(tmp_path / "enroot"))
    assert (choice.choose(RULES, IDENTITY, "").name, choice.recipe("auto")) == ("oci", "oci2")
    assert choice.programs("auto") == ("/usr/bin/skopeo", "/usr/bin/umoci")
    (tmp_path / "enroot").touch()
    assert (choice.choose(RULES, IDENTITY, "").name, choice.recipe("auto")) == ("enroot", "enroot1")
    assert choice.programs("auto") == ("/usr/bin/enroot", "/usr/bin/skopeo")


def test_a_name_that_the_policy_would_refuse() -> None:
    """Nothing is imported by its name."""
    with pytest.raises(ValueError, match="docker"):
        choice.choose(RULES._replace(importer="docker"), IDENTITY, "")
