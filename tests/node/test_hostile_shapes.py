"""Jobs that leave their cache in another shape: the epilog follows no link and removes all (docs/threats.md, 4, 13)."""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.lib.accounts import ALICE, UIDS
from tests.lib.mounts import fuse_for_all
from tests.lib.node import Node
from tests.lib.node_jobs import NodeJob, a_run, with_rules
from tests.lib.processes import wait_until


class Place(NamedTuple):
    """A node, and a directory of its user with a file that no epilog may touch."""

    node: Node
    precious: Path

    def require_removed(self, job: NodeJob) -> None:
        """Require that nothing is left of a job, nothing was harvested, and the precious file is there."""
        assert (self.precious / "file").read_text() == "mine\n"
        assert os.listdir(self.node.workspace) == []
        (epilog,) = [event for event in job.events("hook.finished") if event["hook"] == "epilog"]
        assert epilog["status"] == 0
        assert [event["entries"] for event in job.harvested() if event["entries"]] == []


@pytest.fixture
def place(base: Path) -> Place:
    """Return the node and the directory."""
    precious = base / "precious"
    precious.mkdir()
    (precious / "file").write_text("mine\n")
    for path in (precious, precious / "file"):
        os.chown(path, UIDS[ALICE], UIDS[ALICE])
    return Place(with_rules(base, "rules:\n  - {name: all, profiles: [numba]}\n"), precious)


@pytest.mark.threat(13)
@pytest.mark.parametrize(
    "attack",
    [
        'rm -r "$NUMBA_CACHE_DIR" && ln -s {target} "$NUMBA_CACHE_DIR"',
        'ln -s {target} "$TMPDIR/link" && ln -s {target}/file "$NUMBA_CACHE_DIR/x.py-1.py311.nbi"',
        'mv "$NUMBA_CACHE_DIR" {target}/cache && ln -s {target}/cache "$NUMBA_CACHE_DIR"',
        'mkdir -p "$TMPDIR/a/b" && touch "$TMPDIR/a/b/c" && chmod 0 "$TMPDIR/a/b" "$TMPDIR/a" "$NUMBA_CACHE_DIR"',
        'chmod 0 "$WARMSTART_CACHE" "$TMPDIR"',
        'mkfifo "$NUMBA_CACHE_DIR/fifo" && ln {target}/file "$NUMBA_CACHE_DIR/hard"',
    ],
    ids=["link", "links", "moved", "no-permission", "no-permission-at-all", "odd-files"],
)
def test_a_job_that_leaves_its_cache_in_another_shape(place: Place, attack: str) -> None:
    with a_run(place.node) as job:
        job.run(attack.format(target=place.precious))
    place.require_removed(job)


@pytest.mark.threat(4)
def test_a_job_cannot_move_what_is_roots(place: Place) -> None:
    """The run's directory belongs to root, so a job cannot replace its whole cache by a link."""
    with a_run(place.node) as job:
        kept = job.run('mv "$WARMSTART_CACHE" "$TMPDIR/away" || echo kept; rm -rf "$WARMSTART_CACHE" || echo kept')
    assert kept == "kept\nkept\n"
    place.require_removed(job)


@pytest.mark.threat(13)
@pytest.mark.usefixtures("accounts")
def test_a_mount_in_the_workspace(place: Place) -> None:
    """The user's FUSE mount in TMPDIR: the epilog detaches it without entering it, and removes the workspace."""
    with fuse_for_all(), a_run(place.node) as job:
        job.run(f'mkdir "$TMPDIR/mounted"; bindfs --no-allow-other {place.precious} "$TMPDIR/mounted"')
        wait_until("the mount", lambda: str(place.node.workspace) in Path("/proc/self/mountinfo").read_text(), 10)
    place.require_removed(job)
    assert job.failures() == []
    assert str(place.node.workspace) not in Path("/proc/self/mountinfo").read_text()
