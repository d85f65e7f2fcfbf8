"""The main job where the store refuses even root, as root-squashed file systems do (docs/architecture.md, rule 6)."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from tests.lib.accounts import ALICE, BOB, STORE
from tests.lib.site import Site, result

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.lib.cluster import JobResult


@pytest.mark.threat(6)
def test_an_image_is_imported_once_and_a_cache_is_warm_elsewhere(site: Site, fresh_image: Callable[[], str]) -> None:
    """ws-alice's job on n1 brings both, and her next one on n2 finds them; ws-bob's finds the image."""
    comment = f"--comment=warmstart: image={fresh_image()}"
    script = f'#!/bin/sh\necho "$WARMSTART_IMAGE"\nexec {site.cluster.python} {site.jobs}/copy_job.py\n'

    def run(user: str, node: str) -> JobResult:
        return site.finish(site.cluster.submit(script, user, comment, f"--nodelist={node}"))

    with site.squashed_store("root-squash") as (store, source):
        site.write_policy(store=str(store))
        jobs = [run(ALICE, "n1"), run(ALICE, "n2"), run(BOB, "n3")]
        assert [job.state for job in jobs] == ["COMPLETED"] * 3
        (path,) = {job.output.splitlines()[0] for job in jobs}
        image = source / os.path.relpath(path, store)
        assert image.stat().st_uid == site.cluster.account(STORE).uid
        bundles = [event["bundle"] for job in jobs for event in site.published(job.job_id)]
        assert {*bundles} <= {file.stem for file in source.rglob("*.sqsh")}
    assert [len(site.events(job.job_id, "image.imported")) for job in jobs] == [1, 0, 0]
    assert [len(site.images(job.job_id, "reused")) for job in jobs[1:]] == [1, 1]
    cold, warm, other = (result(job.output) for job in jobs)
    assert (cold["cache_hits"], warm["cache_misses"], other["cache_hits"]) == (0, 0, 0)
