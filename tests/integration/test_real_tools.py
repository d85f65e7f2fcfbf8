"""Real tools on real Slurm: cold on one node as one user, warm on another as another, by the tools' own counters.

The numbers of the table in docs/reference/profiles.md are those of such a run (`pytest -s` prints its rows).
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests import spank
from tests.cluster.accounts import ALICE, BOB
from tests.cluster.site import Site, result
from tests.support.requirements import need_module

if TYPE_CHECKING:
    from collections.abc import Iterator

PAGE = Path(__file__).resolve().parents[2] / "docs" / "reference" / "profiles.md"
RULES = """\
rules:
  - name: everyone
    profiles: [{tool}]
    scope: site
  - name: publisher
    match: {{partition: ci}}
    scope: site
    publish: {{users: [{publisher}]}}
"""
MODULES = {"numba": "numba", "inductor": "torch", "jax": "jax", "torch-extensions": "torch"}
JOBS = {"numba": "numba array", "inductor": "inductor", "jax": "jax", "torch-extensions": "extension"}


@pytest.fixture(scope="module")
def plugged(site_for_module: Site) -> Iterator[Site]:
    """Return the site with the SPANK plugin loaded: two of the tools need the constant path."""
    if spank.missing():
        pytest.fail(spank.missing())
    with spank.loaded(site_for_module):
        yield site_for_module


@pytest.fixture(scope="module")
def site_for_module(installed: Site) -> Iterator[Site]:
    """Return the session's site. Changes to its policy are undone after the module."""
    yield installed
    installed.write_policy()


def ran(site: Site, tool: str, user: str, node: str, *arguments: str) -> tuple[int, dict[str, Any]]:
    """Run the tool's job to its end. Return its id and the line that it printed."""
    job_id = site.compile_job(JOBS[tool], user, node, *arguments)
    ended = site.finish(job_id)
    assert ended.state == "COMPLETED", ended
    return job_id, result(ended.output)


def entries(site: Site, job_id: int, event: str) -> int:
    """Return how many entries a job was seeded with, or how many were harvested."""
    return sum(found["entries"] for found in site.events(job_id, event))


@pytest.mark.parametrize(
    ("tool", "publisher", "reader"),
    [
        ("numba", ALICE, BOB),
        pytest.param("inductor", BOB, ALICE, marks=pytest.mark.tool),
        pytest.param("jax", ALICE, BOB, marks=pytest.mark.tool),
        pytest.param("torch-extensions", BOB, ALICE, marks=pytest.mark.tool),
    ],
)
def test_cold_on_one_node_warm_on_another(plugged: Site, tool: str, publisher: str, reader: str) -> None:
    """All misses for the publisher on n1; all hits for another user on n2, with nothing new to harvest."""
    need_module(MODULES[tool])
    store = plugged.new_store(plugged.cluster.base / f"store-real-{tool}")
    plugged.write_policy(RULES.format(tool=tool, publisher=publisher), constant="spank", store=str(store))
    first, cold = ran(plugged, tool, publisher, "n1", "--partition=ci")
    second, warm = ran(plugged, tool, reader, "n2")
    print(  # noqa: T201 - the row of docs/reference/profiles.md, seen with pytest -s
        f"| {tool} | {cold['cache_hits']}/{cold['cache_misses']} | {warm['cache_hits']}/{warm['cache_misses']} "
        f"| {entries(plugged, second, 'cache.seeded')} | {cold['seconds']:.2f} s | {warm['seconds']:.2f} s |"
    )
    assert (cold["cache_hits"], cold["cache_misses"] > 0) == (0, True)
    assert (warm["cache_hits"] > 0, warm["cache_misses"]) == (True, 0)
    assert entries(plugged, first, "cache.seeded") == 0
    assert entries(plugged, second, "cache.seeded") == entries(plugged, first, "cache.harvested") > 0
    assert entries(plugged, second, "cache.harvested") == 0
    row = re.search(rf"^\| {tool} \| 0/[1-9]\d* \| [1-9]\d*/0 \|", PAGE.read_text(), re.MULTILINE)
    assert row is not None, "docs/reference/profiles.md has no such row"
