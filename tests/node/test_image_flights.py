"""Many processes want one cold image, in a store that refuses root: one import, and waiters do not queue."""

from __future__ import annotations

import os
import pwd
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.lib import mounts
from tests.lib.accounts import IMPORT, STORE
from tests.lib.image_place import Place, Ready, Store, in_child, leftovers, opened_place, result, squashfs
from tests.lib.worker_calls import noted_calls
from warmstart.host.deadline import after
from warmstart.images.imports import making
from warmstart.images.query import Site
from warmstart.images.store import published
from warmstart.images.store.client import ImageStoreClient

SLOW_S = 1.5
GENEROUS_S = 10.0  # far above what is measured; a wait that grew with N took a minute at 64


@pytest.fixture(scope="module")
def place(capable_host: None) -> Iterator[Place]:
    """Return accounts and a directory for this module, with a squashfs to import."""
    with opened_place() as made:
        squashfs(made.base / "ready.sqsh", 400_000)
        yield made


def site_of(place: Place, store: Path, number: int) -> Site:
    """Return the view of one of several nodes, with the slow importer."""
    importer = partial(Ready, place.identity(IMPORT), str(place.base / "ready.sqsh"), SLOW_S)
    return place.site(store, importer=importer, run_id=f"r{number}", node=f"n{number % 4}")


def obtain(site: Site, place: Place, name: str) -> dict[str, Any]:
    """Obtain the image, one of many that want it. Return how, when, and how often the store was queried."""
    asked = noted_calls()
    with site.store:
        found = making.obtain(place.image(name), site, after(90))
    return {"how": found.how, "path": found.path, "at": time.time(), "asked": len(asked), "waited": found.waited_s}


def as_owner(place: Place, path: str) -> bytes:
    """Read an image as the store's owner, the only uid that a squashed store serves."""
    account = pwd.getpwnam(STORE)
    argv = ["cat", path]
    return subprocess.run(argv, check=True, capture_output=True, user=account.pw_uid, group=account.pw_gid).stdout


@pytest.mark.parametrize("count", [8, 64])
def test_one_import_however_many_want_it(place: Place, store: Store, count: int) -> None:
    jobs = [partial(obtain, site_of(place, store.path, number), place, "team/cold:1") for number in range(count)]
    results = [result(child) for child in [in_child(job) for job in jobs]]
    assert [row["how"] for row in results].count("imported") == 1
    assert {row["how"] for row in results} <= {"imported", "waited", "reused"}
    ends = sorted(row["at"] for row in results)
    waits = [row["asked"] for row in results if row["how"] == "waited"]
    print(f"{count} processes: first to last {ends[-1] - ends[0]:.2f} s; calls of a waiter: at most {max(waits)}")  # noqa: T201
    assert ends[-1] - ends[0] < GENEROUS_S
    assert store.file(results[0]["path"]).read_bytes() == (place.base / "ready.sqsh").read_bytes()


def test_locks_that_two_mounts_do_not_share(place: Place) -> None:
    source = place.new_store("unshared-source")
    with ExitStack() as stack:
        stores = [
            stack.enter_context(mounts.squashed(place.base, source, place.base / name, place.accounts[STORE]))
            for name in ("mount-a", "mount-b")
        ]
        jobs = [partial(obtain, site_of(place, stores[n % 2], n), place, "team/twice:1") for n in range(12)]
        results = [result(child) for child in [in_child(job) for job in jobs]]
        imports = [row["how"] for row in results].count("imported")
        print(f"imports over two mounts without common locks: {imports}")  # noqa: T201
        assert imports in (1, 2)
        for row in results:
            assert as_owner(place, row["path"]) == (place.base / "ready.sqsh").read_bytes()
        with ImageStoreClient.of(place.identity(STORE), str(stores[0])) as client:
            name = os.path.basename(results[0]["path"]).removesuffix(".sqsh")
            assert client.run(after(30), published.check_bytes, name, "t").problem == ""
    assert leftovers(source) == []
