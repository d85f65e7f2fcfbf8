"""Attacks on what is shared with launchers, each of which fails (docs/threats.md, rows 2 and 16).

The store and the launchers' directory are on one file system, which refuses root's uid. The test makes other users'
changes in the directory behind it.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from tests.lib.accounts import ALICE, IMPORT, STORE
from tests.lib.image_place import Place, Ready, Store, opened_place, squashfs
from tests.lib.wings.launchers import values
from warmstart.host.deadline import after
from warmstart.images.imports import making
from warmstart.images.query import Obtained, Site
from warmstart.images.store.layout import Charged

pytestmark = pytest.mark.threat(6)

NAME = "team/popular:1"


@pytest.fixture(scope="module")
def place(capable_host: None) -> Iterator[Place]:
    """Return accounts and a directory for this module, with a good image and an evil one."""
    with opened_place() as made:
        squashfs(made.base / "ready.sqsh", 40_000)
        squashfs(made.base / "evil.sqsh", 40_000)
        yield made


@pytest.fixture
def shared(place: Place, request: pytest.FixtureRequest) -> Iterator[Store]:
    """Return a file system that refuses all uids but the store owner's, with two directories of that owner."""
    with place.squashed(request.node.name, coherent=True) as made:
        for name in ("store", "launchers"):
            place.own(made.source / name).chmod(0o755)
        yield made


@pytest.fixture
def launchers(shared: Store) -> Path:
    """Return the directory of launchers' images, in the test's view."""
    return shared.source / "launchers"


@pytest.fixture
def site(place: Place, shared: Store) -> Site:
    """Return node n1's view of an empty store; the policy locks in the launchers' directory."""
    importer = partial(Ready, place.identity(IMPORT), str(place.base / "ready.sqsh"))
    places = values.launchers(shared.path / "launchers", lock=True)
    made = place.site(shared.path / "store", importer=importer, places=places)
    return made._replace(store=values.client(place.identity(STORE), shared.path / "store"))


def left(place: Place, launchers: Path, owner: str) -> Path:
    """Leave the evil image where a launcher would have left the popular one."""
    name = place.image(NAME).canonical().translate(str.maketrans("/:", "__"))
    path = launchers / f"{name}.sqsh"
    path.write_bytes((place.base / "evil.sqsh").read_bytes())
    account = place.accounts[owner]
    os.chown(path, account.uid, account.gid)
    path.chmod(0o644)
    return path


def held(place: Place, lock: Path, how: str) -> subprocess.Popen[bytes]:
    """Run a process that holds a lock, opened for reading, as the only uid that the file system serves."""
    account = place.accounts[STORE]
    argv = ["sh", "-c", f'exec 9<"$0"; flock {how} 9; echo; exec sleep 60', str(lock)]
    process = subprocess.Popen(argv, stdout=subprocess.PIPE, user=account.uid, group=account.gid)
    assert process.stdout is not None
    assert process.stdout.read(1) == b"\n"
    process.stdout.close()
    return process


def is_good(image: Obtained, place: Place, shared: Store) -> bool:
    """Return whether the store has the registry's image and not a planted one."""
    return shared.file(image.path).read_bytes() == (place.base / "ready.sqsh").read_bytes()


@pytest.mark.threat(2)
@pytest.mark.parametrize("owner", [ALICE, STORE])
def test_what_lies_there_is_nobodys_image(place: Place, shared: Store, launchers: Path, site: Site, owner: str) -> None:
    """Row 2 of docs/threats.md: of a file with a popular image's name nothing is taken, whoever it belongs to."""
    launchers.chmod(0o1777)
    theirs = left(place, launchers, owner)
    found = making.obtain(place.image(NAME), site, after(30))
    assert (found.how, is_good(found, place, shared)) == ("imported", True)
    assert theirs.read_bytes() == (place.base / "evil.sqsh").read_bytes()


def test_one_users_name_does_not_become_anothers(place: Place, launchers: Path, site: Site) -> None:
    """Launchers name `team/popular` and `team_popular` alike: a user's request gets no name there."""
    reference = place.image("team/popular_1:x")
    alices = site._replace(charged=Charged("ws-alice", place.accounts[ALICE].uid))
    assert making.obtain(reference, alices, after(30)).how == "imported"
    assert [path.name for path in launchers.iterdir() if path.is_symlink()] == []
    named = making.obtain(place.image(NAME), site, after(30))
    assert [os.readlink(path) for path in launchers.iterdir() if path.is_symlink()] == [named.path]


@pytest.mark.threat(16)
@pytest.mark.parametrize("kind", ["fifo", "link", "directory", "held", "held for reading"])
def test_a_hostile_lock_costs_a_moment(place: Place, shared: Store, launchers: Path, site: Site, kind: str) -> None:
    """A FIFO, a link, a directory, a lock never released: the import continues without it and reports it."""
    launchers.chmod(0o1777)
    name = place.image(NAME).canonical().translate(str.maketrans("/:", "__"))
    lock = launchers / f"{name}.sqsh.lock"
    holder: subprocess.Popen[bytes] | None = None
    if kind == "fifo":
        os.mkfifo(lock, 0o666)
    elif kind == "link":
        lock.symlink_to("/etc/passwd")
    elif kind == "directory":
        lock.mkdir()
    else:
        lock.touch()
        os.chown(lock, place.accounts[ALICE].uid, -1)
        lock.chmod(0o644)
        holder = held(place, shared.path / "launchers" / lock.name, "-s" if kind == "held for reading" else "-x")
    found = making.obtain(place.image(NAME), site, after(8))
    assert (found.how, is_good(found, place, shared)) == ("imported", True)
    assert f"{name}.sqsh.lock" in found.missing.lockless
    if holder:
        holder.kill()
        holder.wait()
