"""Jobs whose image is in the store, while the store takes nothing or the registry is mad. Real Slurm, tags expired."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.lib import mounts
from tests.lib.accounts import ALICE, BOB
from tests.lib.nonsense import PAGE, Answer, Relay, relayed
from tests.lib.registry import Registry, build_image
from tests.lib.site import Site

RULES = "rules: [{name: all, scope: user}]\n"
SHOW = """#!/bin/sh
unsquashfs -s "$WARMSTART_IMAGE" > /dev/null && echo found "$WARMSTART_IMAGE"
PATH=/usr/bin:/bin {importer} get docker://{image}
"""


class Small(NamedTuple):
    """A site with a small store of its own, and an image behind a relay."""

    site: Site
    relay: Relay
    image: str
    store: Path

    def expire(self) -> None:
        """Let the time to live of all tags be over."""
        time.sleep(1)  # an idle machine imports an image and ends a job in less
        file = self.site.etc / "policy.yaml"
        file.write_text(file.read_text().replace("tag_ttl: 24h", "tag_ttl: 1s"))

    def submit(self, user: str) -> int:
        """Submit a job that wants the image, and asks pyxis's importer for it, too."""
        importer = self.site.cluster.prefix / "libexec" / "warmstart" / "pyxis-importer"
        script = SHOW.format(importer=importer, image=self.image.replace("/", "#", 1))
        return self.site.cluster.submit(script, user, f"--comment=warmstart: image={self.image}", "--nodelist=n1")

    def run(self, user: str) -> str:
        """Return the output of such a job, which has ended well."""
        ended = self.site.finish(self.submit(user))
        assert ended.state == "COMPLETED", ended.output
        return ended.output


@pytest.fixture
def small(site: Site, registry: Registry, fresh_image: Callable[[], str]) -> Iterator[Small]:
    """Return a site whose small store has an image."""
    name = fresh_image().partition("/")[2]
    place = site.cluster.base / f"store-{name.partition('/')[2].partition(':')[0]}"
    with relayed(registry.url) as relay, mounts.tmpfs(place, "16m") as store:
        site.new_store(store)
        site.write_policy(RULES, registry=relay.url, store=str(store))
        made = Small(site, relay, f"{relay.url}/{name}", store)
        assert "found" in made.run(ALICE)
        made.expire()
        yield made
        site.cluster.wait_idle()


@contextmanager
def full(store: Path) -> Iterator[None]:
    """Leave not a byte and not an inode on the store's file system, not even for root."""
    with (store / "hog").open("wb") as hog:
        block = 1 << 16
        while block:
            try:
                os.write(hog.fileno(), b"x" * block)
            except OSError:
                block //= 2
        try:
            for number in range(10_000):
                (store / f"hog{number}").touch()
        except OSError:
            pass
    try:
        yield
    finally:
        for path in store.glob("hog*"):
            path.unlink()


def one_path(output: str) -> str:
    """Return the path that the variable and pyxis's importer name, which is the same."""
    by_variable, by_importer = (line.split()[-1] for line in output.splitlines() if not line.startswith("warmstart: "))
    assert by_variable == by_importer
    return by_variable


@pytest.mark.parametrize(("broken", "problem"), [
    (full, "No space left on device"),
    (mounts.read_only, "Read-only file system"),
])  # fmt: skip
def test_a_store_that_takes_nothing(small: Small, broken: Callable[[Path], object], problem: str) -> None:
    """No lock can be made in it, so nobody asks the registry; the second job does not even try. Both are told."""
    with broken(small.store):  # type: ignore[attr-defined]
        outputs = [small.run(user) for user in (ALICE, BOB)]
    for output in outputs:
        assert Path(one_path(output)).parent == small.store / "images"
        assert f"image {small.image} is what its tag meant last, sha256:" in output
        assert f"in the store {small.store}: {problem}" in output
    failed = [event for event in small.site.audit("--event", "image.import-failed") if event["image"] == small.image]
    assert len(failed) == 1
    stale = [event for event in small.site.audit("--event", "image.stale") if event["image"] == small.image]
    assert all(problem in event["reason"] for event in stale)
    assert len(stale) == 2


def test_a_registry_in_maintenance(small: Small) -> None:
    """A page in its place; the job is told, and the registry is not asked again by each job."""
    small.relay.asked.clear()
    with small.relay.saying({r"GET .*": Answer(200, PAGE)}):
        outputs = [small.run(user) for user in (ALICE, BOB)]
    assert len([asked for asked in small.relay.asked if "manifests/1" in asked]) == 1
    for output in outputs:
        assert one_path(output)
        assert "its registry answered with something that is no image's manifest" in output


def test_a_tag_that_moved_to_a_broken_image(small: Small, registry: Registry) -> None:
    """The job fails with both digests."""
    name = small.image.partition("/")[2]
    new = registry.push(build_image(small.site.cluster.base / "images" / "moved", {"/v": "2"}), "latest", name)
    with small.relay.saying({r"GET .*/blobs/.*": Answer(404)}):
        ended = small.site.finish(small.submit(ALICE))
        assert ended.state == "FAILED"
        assert f"; the tag means {new} now, and {name.partition(':')[0]}@sha256:" in ended.output.replace(
            f"{small.relay.url}/", ""
        )
