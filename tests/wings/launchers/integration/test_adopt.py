"""`warmstart adopt`, and links for launchers, on a store that refuses root: a whole policy, and its commands."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.accounts import IMPORT, STORE, VALIDATE
from tests.support.command_line import answer, installed, run
from tests.support.image_place import Place, Ready, Store, opened_place, squashfs
from warmstart.images import choice
from warmstart.paths import Installation

POLICY = """\
version: 1
paths: {{workspace: {base}/workspace, store: {path}, audit: {base}/log/audit.jsonl}}
store_user: {store}
import_user: {importer}
validate_user: {validator}
images:
  importer: oci
  registries: ["{registry}"]
  insecure: ["{registry}"]
  keep: {{high: 99%, low: 98%, floor: 0%}}
launchers:
  directory: {base}/launchers
  lock: true
  adopt: [{{directory: {base}/launchers, owners: [{store}]}}]
"""


@pytest.fixture(scope="module")
def place(capable_host: None) -> Iterator[Place]:
    """Return accounts and a directory for this module, with a squashfs to import."""
    with opened_place() as made:
        squashfs(made.base / "ready.sqsh", 40_000)
        yield made


@pytest.fixture
def store(place: Place, request: pytest.FixtureRequest) -> Iterator[Store]:
    """Return an empty store that refuses every uid but its owner's."""
    with place.squashed(request.node.name, coherent=True) as made:
        yield made


@pytest.fixture
def launchers(place: Place) -> Iterator[Path]:
    """Give the launchers' directory."""
    place.own(place.base / "launchers").chmod(0o755)
    yield place.base / "launchers"
    shutil.rmtree(place.base / "launchers")


@pytest.fixture
def site(place: Place, store: Store, launchers: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Installation]:
    """Return an installation with that store, whose imports copy an image that is there already."""
    assert launchers.is_dir()
    made = Ready(place.identity(IMPORT), str(place.base / "ready.sqsh"))
    monkeypatch.setattr(choice, "choose", lambda *_: made)
    policy = POLICY.format(
        base=place.base, path=store.path, store=STORE, importer=IMPORT, validator=VALIDATE, registry=place.registry.url
    )
    prefix = place.base / "prefix"
    yield installed(prefix, policy)
    shutil.rmtree(prefix)


def named(launchers: Path, reference: str) -> Path:
    """Return the path at which launchers look for an image."""
    return launchers / f"{reference.translate(str.maketrans('/:', '__'))}.sqsh"


def test_adopt(site: Installation, place: Place, store: Store, launchers: Path) -> None:
    """A launcher's image is copied from the policy's directory. If there is none, the error says so."""
    reference = f"{place.registry.url}/team/adopted:1"
    nothing = run(site, "adopt", reference)
    assert (nothing.exit_code, "no directory that has it" in nothing.stderr) == (1, True)
    path = squashfs(place.base / "theirs.sqsh", 40_000)
    theirs = named(launchers, reference)
    path.rename(theirs)
    os.chown(theirs, place.accounts[STORE].uid, -1)
    found = answer(site, "adopt", reference)
    assert found["how"] == "adopted"
    assert store.file(found["path"]).read_bytes() == theirs.read_bytes()
    assert answer(site, "images", "import", reference)["how"] == "reused"
    (entry,) = answer(site, "images", "list")
    assert entry["importer"] == f"adopted from {theirs}"


def test_launchers_find_the_stores_images(site: Installation, place: Place, launchers: Path) -> None:
    """By a link, which goes with the image: by a command, or by maintenance if that was killed meanwhile."""
    reference = f"{place.registry.url}/team/shown:1"
    link = named(launchers, reference)
    for _ in range(2):
        found = answer(site, "images", "import", reference)
        assert (found["how"], os.readlink(link)) == ("imported", found["path"])
        answer(site, "images", "rm", reference, "--force")
        assert not link.is_symlink()
    link.symlink_to(found["path"])
    assert run(site, "maintain", "--store").exit_code == 0
    assert not link.is_symlink()
    assert (launchers / f"{link.name}.lock").exists()
