"""What a warm job's hooks and the store's maintenance cost does not grow with what a site has, by counts."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.lib.bench_site import KIND, UNCOUNTED, USUAL, BenchSite, bench_site
from tests.lib.sample_log import write as write_log
from warmstart.images.reference import parse
from warmstart.images.store import layout as images

pytestmark = pytest.mark.sweep

SLACK = 10  # system calls: which second it is, and what others do on the host, makes a few
MOST_MOUNTED = 15  # bundles of a profile that a job has mounted (docs/reference/profiles.md#seeding)
# A process begins with the peak memory of the one that started it, so that has to be small.


@pytest.fixture(scope="module")
def site(capable_host: None) -> Iterator[BenchSite]:
    """Yield a site with an image, and a bundle of each profile."""
    with bench_site(10) as made:
        made.write_policy(USUAL)
        made.fill_caches(3)
        yield made


def warm(site: BenchSite) -> dict[str, tuple[int, int]]:
    """Return how many system calls the hooks of a warm job make, and how many on the store."""
    for hook in ("prolog", "epilog") * 2:  # the policy is compiled, bundles are fetched and mounted
        site.hook(hook).run()
    found = {}
    for hook in ("prolog", "epilog"):
        calls = [line for line in site.hook(hook).calls(site.base / "calls") if not UNCOUNTED.search(line)]
        found[hook] = (len(calls), site.on_store(calls))
    return found


@contextmanager
def flat(site: BenchSite) -> Iterator[None]:
    """Hold that what is added in a `with` costs a warm job no more."""
    before = warm(site)
    yield
    now = warm(site)
    assert {hook: on_store for hook, (_, on_store) in now.items()} == {hook: few for hook, (_, few) in before.items()}
    assert {hook: calls for hook, (calls, _) in now.items() if calls > before[hook][0] + SLACK} == {}


def test_images_in_the_store(site: BenchSite) -> None:
    top = site.base / "store" / "images"
    with flat(site):
        for number in range(1000):
            digest = f"sha256:{number:064x}"
            name = images.image_name(digest, KIND)
            key = images.key_of(parse(f"reg.example.com/team/other:{number}").canonical())
            (top / "used" / name).mkdir(parents=True)
            (top / "used" / name / "n1").touch()
            (top / f"{name}.sqsh").touch()
            (top / f"{name}.json").write_text("{}")
            (top / "tags" / f"{key}.json").write_text(json.dumps({"digest": digest, "resolved": 0}))


def test_bundles_in_the_namespace(site: BenchSite) -> None:
    most = 3 * MOST_MOUNTED
    site.fill_caches(most, there=3)
    with flat(site):
        site.fill_caches(most + 15, there=most)


def test_jobs_on_the_node(site: BenchSite) -> None:
    others = range(1000, 1008)
    with flat(site):
        for job in others:
            site.hook("prolog", job).run()
    for job in others:
        site.hook("epilog", job).run()


def test_the_audit_log(site: BenchSite) -> None:
    log = site.base / "audit/audit.jsonl"
    with flat(site):
        piece = log.with_name("piece")
        write_log(piece, 5000)
        data = piece.read_bytes()
        piece.unlink()
        with log.open("ab") as file:
            while file.tell() < 100 << 20:
                file.write(data)
            os.fsync(file.fileno())
