"""Jobs whose image is in the store, while the store takes nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest

from tests.lib import mounts
from tests.lib.accounts import ALICE, BOB
from tests.lib.site import Site
from tests.lib.tags import is_older

DAY_S = 86_400
SHOW = """#!/bin/sh
unsquashfs -s "$WARMSTART_IMAGE" > /dev/null && echo found "$WARMSTART_IMAGE"
PATH=/usr/bin:/bin {importer} get docker://{image}
"""


@contextmanager
def full(store: Path) -> Iterator[None]:
    """Leave not a byte and not an inode on the store's file system, not even for root."""
    with mounts.full(store):
        try:
            for number in range(10_000):
                (store / f"hog{number}").touch()
        except OSError:
            pass
        yield
    for path in store.glob("hog*"):
        path.unlink()


@pytest.mark.parametrize(("broken", "problem"), [
    (full, "No space left on device"),
    (mounts.read_only, "Read-only file system"),
])  # fmt: skip
def test_a_store_that_takes_nothing(
    site: Site,
    fresh_image: Callable[[], str],
    broken: Callable[[Path], AbstractContextManager[object]],
    problem: str,
) -> None:
    """The tag's time is over, but no lock can be made, so nobody asks the registry; the second job does not even try.

    Both jobs have the last image, and are told. pyxis's importer gives the same one.
    """
    image, place = fresh_image(), site.cluster.base / f"store-{broken.__name__}"
    importer = site.cluster.prefix / "libexec" / "warmstart" / "pyxis-importer"
    script = SHOW.format(importer=importer, image=image.replace("/", "#", 1))

    def run(user: str) -> str:
        comment = f"--comment=warmstart: image={image}"
        ended = site.finish(site.cluster.submit(script, user, comment, "--nodelist=n1"))
        assert ended.state == "COMPLETED", ended.output
        return ended.output

    with mounts.tmpfs(place, "16m") as store:
        site.new_store(store)
        site.write_policy("rules: [{name: all, scope: user}]\n", store=str(store))
        assert "found" in run(ALICE)
        is_older(site, image, DAY_S, store)
        with broken(store):
            outputs = [run(user) for user in (ALICE, BOB)]
        site.cluster.wait_idle()
    for output in outputs:
        paths = [line.split()[-1] for line in output.splitlines() if not line.startswith("warmstart: ")]
        assert [Path(path).parent for path in paths] == [store / "images"] * 2
        assert f"image {image} is what its tag meant last, sha256:" in output
        assert f"in the store {store}: {problem}" in output
    failed = [event for event in site.audit("--event", "image.import-failed") if event["image"] == image]
    assert len(failed) == 1
    stale = [found for found in site.images(how="stale") if found["image"] == image]
    assert [problem in found["reason"] for found in stale] == [True, True]
