"""The main job where the store refuses even root, as root-squashed file systems do (docs/architecture.md, rule 6)."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from tests.lib.accounts import ALICE, BOB, STORE
from tests.lib.site import Site, result

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

pytestmark = pytest.mark.threat(6)


@pytest.fixture
def squashed(site: Site, request: pytest.FixtureRequest) -> Iterator[Path]:
    """Put a store in force that only its owner can read. Return its directory where root may read."""
    with site.squashed_store(request.node.name) as (store, source):
        site.write_policy(store=str(store))
        yield source


def test_an_image_is_imported_once_and_found(site: Site, squashed: Path, fresh_image: Callable[[], str]) -> None:
    """ws-alice's job on n1 imports it, ws-bob's on n2 finds it; both get the same path."""
    comment = f"--comment=warmstart: image={fresh_image()}"
    script = '#!/bin/sh\necho "$WARMSTART_IMAGE"\n'
    jobs = [
        site.finish(site.cluster.submit(script, user, comment, f"--nodelist={node}"))
        for user, node in ((ALICE, "n1"), (BOB, "n2"))
    ]
    assert [job.state for job in jobs] == ["COMPLETED"] * 2
    paths = {job.output.strip() for job in jobs}
    assert len(paths) == 1
    image = squashed / os.path.relpath(paths.pop(), str(squashed).replace(".source", ".store"))
    assert image.stat().st_uid == site.cluster.account(STORE).uid
    assert len(site.events(jobs[0].job_id, "image.imported")) == 1
    assert len(site.events(jobs[1].job_id, "image.reused")) == 1


def test_a_cache_is_harvested_and_seeded(site: Site, squashed: Path) -> None:
    """What a job has made on n1 is there on n2."""
    cold = site.finish(site.compile_job("copy", ALICE, "n1"))
    warm = site.finish(site.compile_job("copy", ALICE, "n2"))
    assert result(cold.output)["cache_hits"] == 0
    assert result(warm.output)["cache_misses"] == 0
    published = site.events(cold.job_id, "bundle.published")
    assert [path.stem for path in squashed.rglob("*.sqsh")] == [event["bundle"] for event in published]
