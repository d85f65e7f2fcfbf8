"""Many launchers and hooks want one cold image, in a store that refuses root: one import at a time."""

from __future__ import annotations

import pwd
import subprocess
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.lib import processes
from tests.lib.accounts import IMPORT, STORE
from tests.lib.image_place import Place, Ready, Store, in_child, opened_place, result, squashfs
from tests.lib.wings.launchers import values
from warmstart.host.deadline import after
from warmstart.images.imports import making
from warmstart.images.query import Site

SLOW_S = 1.5
EACH = 12

# The InferenceX launchers' pattern (reference: runners/launch_*.sh), with what they import counted.
LAUNCHER = r"""
exec 9>"$FILE.lock"
flock -w 60 9 || exit 1
if ! unsquashfs -l "$FILE" > /dev/null 2>&1; then
    rm -f "$FILE"
    echo imported >> "$COUNT"
    sleep 0.5
    cp "$IMAGE" "$FILE"
fi
exec unsquashfs -l "$FILE" > /dev/null
"""


@pytest.fixture(scope="module")
def place(capable_host: None) -> Iterator[Place]:
    """Return accounts and a directory for this module, with a squashfs to import."""
    with opened_place() as made:
        squashfs(made.base / "ready.sqsh", 400_000)
        yield made


@pytest.fixture
def store(place: Place, request: pytest.FixtureRequest) -> Iterator[Store]:
    """Return an empty store that refuses every uid but its owner's."""
    with place.squashed(request.node.name) as made:
        yield made


def site_of(place: Place, store: Path, directory: Path, number: int) -> Site:
    """Return the view of one of several nodes, with the slow importer and the launchers' lock."""
    importer = partial(Ready, place.identity(IMPORT), str(place.base / "ready.sqsh"), SLOW_S)
    places = values.launchers(directory, lock=True)
    site = place.site(store, importer=importer, run_id=f"r{number}", node=f"n{number % 4}", places=places)
    return site._replace(store=values.client(place.identity(STORE), store))


def obtain(site: Site, place: Place, name: str) -> dict[str, Any]:
    """Obtain the image, one of many that want it. Return how, and its path."""
    found = making.obtain(place.image(name), site, after(90))
    return {"how": found.how, "path": found.path}


def as_owner(place: Place, path: str) -> bytes:
    """Read an image as the store's owner, the only uid that a squashed store serves."""
    account = pwd.getpwnam(STORE)
    argv = ["cat", path]
    return subprocess.run(argv, check=True, capture_output=True, user=account.pw_uid, group=account.pw_gid).stdout


@pytest.mark.parametrize("first", ["hooks", "launchers"])
def test_launchers_and_hooks_exclude_each_other(place: Place, store: Store, first: str) -> None:
    """As many launchers with flock(1) as hooks want one image: the hooks import once, late launchers never."""
    account, ready = place.accounts[STORE], str(place.base / "ready.sqsh")
    for name in ("hooks", "launchers"):
        place.own(store.source / name)
    count = place.own(place.base / f"counts-{first}") / "imports"
    names = store.path / "launchers"
    reference = place.image("team/mixed:1")
    file = names / f"{reference.canonical().translate(str.maketrans('/:', '__'))}.sqsh"
    environment = {"FILE": str(file), "COUNT": str(count), "IMAGE": ready, "PATH": "/usr/bin:/bin"}
    hooks_store = store.path / "hooks"
    jobs = [partial(obtain, site_of(place, hooks_store, names, n), place, "team/mixed:1") for n in range(EACH)]
    hooks: list[tuple[int, int]] = []
    launchers: list[subprocess.Popen[bytes]] = []

    def start_launchers() -> None:
        argv = ["bash", "-c", LAUNCHER]
        launchers.extend(
            subprocess.Popen(argv, env=environment, user=account.uid, group=account.gid) for _ in range(EACH)
        )

    def start_hooks() -> None:
        hooks.extend(in_child(job) for job in jobs)

    starts = [start_hooks, start_launchers] if first == "hooks" else [start_launchers, start_hooks]
    starts[0]()
    processes.wait_until("the first one's lock", store.file(f"{file}.lock").exists, 20)
    starts[1]()
    assert [launcher.wait(60) for launcher in launchers] == [0] * EACH
    results = [result(child) for child in hooks]
    by_launchers = count.read_text().count("imported") if count.exists() else 0
    by_hooks = [row["how"] for row in results].count("imported")
    print(f"imports: {by_launchers} by launchers, {by_hooks} by hooks")  # noqa: T201
    assert (by_launchers, by_hooks) == ((0, 1) if first == "hooks" else (1, 1))
    image = as_owner(place, str(file))
    assert image == Path(ready).read_bytes()
    assert {row["path"]: as_owner(place, row["path"]) == image for row in results} == {results[0]["path"]: True}
