"""The same jobs without warmstart, observed, and enforced: what observing changes."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from tests.lib.observed_jobs import POLICY, PROFILES, Ran, mix, run, together
from tests.lib.site import Site


def differences(ran: Ran, other: Ran) -> dict[int, set[str]]:
    """Return the lines that only one of two runs of a job printed, by the job's number; none if the order differs."""
    pairs = enumerate(zip(ran.outputs, other.outputs, strict=True))
    return {number: {*one.splitlines()} ^ {*two.splitlines()} for number, (one, two) in pairs if one != two}


def files(*places: Path) -> dict[str, int]:
    """Return every path below some directories, with its size if it is a file."""
    found = {}
    for place in places:
        for directory, _, names in os.walk(place):
            found[directory] = -1
            found |= {f"{directory}/{name}": os.lstat(f"{directory}/{name}").st_size for name in names}
    return found


def test_observing_changes_nothing(site: Site, fresh_image: Callable[[], str]) -> None:
    """Environment, files and mounts of every job are those without warmstart; enforcing is seen."""
    jobs = mix(12, [fresh_image() for _ in range(3)])
    store = site.new_store(site.cluster.base / "store-observing")
    site.write_policy(POLICY.format(mode="observe", profiles=PROFILES), store=str(store))
    try:
        (site.etc / "off").touch()
        without = run(site, jobs, together(jobs))
    finally:
        (site.etc / "off").unlink()
    before = files(store, site.workspace, site.constant)
    assert differences(run(site, jobs, together(jobs)), without) == {}
    assert files(store, site.workspace, site.constant) == before
    site.write_policy(POLICY.format(mode="enforce", profiles=PROFILES), store=str(store))
    assert differences(run(site, jobs[:1], [[0]]), Ran(without.outputs[:1], set())) != {}
