"""What a job gets of the tree that it asks for."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from tests.support.runs import a_context, events
from warmstart.seed import node_cache
from warmstart.seed.node_cache import Copy
from warmstart.steps import tree as step
from warmstart.steps.contract import Context
from warmstart.steps.tree import Options
from warmstart.store import bundles
from warmstart.store.manifest import Draft, File, Producer
from warmstart.trees import current, place, requests, shown
from warmstart.trees.current import TreeUnusable

SCOPE = "user-64201-ws-alice"


class Shown:
    """A job, its tree, and what was mounted for it."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.tree = root / "trees" / "env"
        self.tree.mkdir(parents=True)
        (self.tree / "pyvenv.cfg").write_text("")
        if os.geteuid() == 0:
            os.chown(self.tree, 64201, 64201)
        (root / "store").mkdir()
        context = a_context(root)
        policy = context.policy
        self.context: Context = context._replace(
            policy=policy._replace(trees=policy.trees._replace(prefixes=(str(self.tree.parent),)))
        )
        os.makedirs(context.record.run_directory)
        self.copies: list[int | None] = []
        self.started: list[object] = []
        monkeypatch.setattr(shown, "show", lambda _run, _path, copy: self.copies.append(copy))
        monkeypatch.setattr(requests, "start_due", self.started.append)
        monkeypatch.setattr(node_cache, "mounted", self._mounted)

    def _mounted(self, _layers: str, copies: list[Copy], _deadline: object) -> list[int]:
        assert os.path.exists(copies[0].path)
        return [os.open(self.tree, os.O_RDONLY)]

    def publish(self) -> None:
        """Publish a copy of the tree as it is."""
        seen = current.look(str(self.tree), [str(self.tree.parent)], "")
        where = place.place_of(self.context.store.path, SCOPE, seen)
        whole = {place.ENTRY: {place.ENTRY: File(0, seen.stamp, 0)}}
        draft = Draft(Producer(1, "ws-alice", 64201, "n1", "test"), place.facts_of(seen), whole)
        fd = os.memfd_create("tree")
        os.write(fd, b"squashfs")
        assert bundles.publish_bundle(where, fd, draft, "n1-test").bundle
        os.close(fd)

    def run(self, *, alone: bool = True, tree: str = "") -> tuple[str, ...]:
        """Run the step; return its notices."""
        return step.run(self.context, Options(tree or str(self.tree), "", SCOPE, alone=alone)).notices

    def event(self) -> tuple[str, str]:
        """Return the last way of showing it, and the reason."""
        told = events(self.context, "tree.shown")[-1]
        return told["way"], told["reason"]


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Shown:
    """Return a job with a tree."""
    return Shown(tmp_path, monkeypatch)


def test_without_a_copy_one_is_asked_for(site: Shown) -> None:
    """The job reads the tree itself, and is told."""
    (notice,) = site.run()
    assert notice.endswith("read-only; a copy is packed in the background")
    assert (site.event(), site.copies, len(site.started)) == (("itself", "no-copy"), [None], 1)
    assert [request.tree for request in requests.due(site.context.paths)] == [str(site.tree)]


def test_a_copy_of_the_tree_as_it_is_is_shown(site: Shown) -> None:
    """Not one of the tree as it was."""
    site.publish()
    assert (site.run(), site.event()) == ((), ("copy", ""))
    assert site.copies != [None]
    os.utime(site.tree, (time.time() - 5, time.time() - 5))
    site.run()
    assert site.event() == ("itself", "no-copy")


def test_nodes_of_a_job_do_not_differ(site: Shown) -> None:
    """All read the tree itself, and nothing is packed for them."""
    site.publish()
    site.run(alone=False)
    assert (site.event(), site.started) == (("itself", "several-nodes"), [])


def test_a_store_that_fails_costs_the_copy_alone(site: Shown) -> None:
    """The tree is shown all the same."""
    os.rmdir(site.context.store.path)
    outcome = step.run(site.context, Options(str(site.tree), "", SCOPE, alone=True))
    assert [error.code for error in outcome.degraded] == ["store-failed"]
    assert site.event() == ("itself", "store-failed")


def test_what_is_no_tree_is_not_shown(site: Shown) -> None:
    """The job runs as if it had not asked, and is told by the error."""
    with pytest.raises(TreeUnusable):
        site.run(tree=f"{site.tree}/gone")
    assert site.copies == []
