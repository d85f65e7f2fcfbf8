"""What a job gets of the tree that it asks for."""

from __future__ import annotations

import os
import time
from types import SimpleNamespace
from typing import cast

import pytest

from tests.lib.node import SCOPE
from tests.lib.policy_site import defaults, offering
from tests.lib.runs import a_context, a_job, a_run, result
from tests.lib.wings.trees.sites import NOT_ROOT, TreeSite
from warmstart import plan
from warmstart.paths import NOTHING
from warmstart.policy.keys import User
from warmstart.policy.match import Grant
from warmstart.policy.shared import SharedPath
from warmstart.queue import Queue
from warmstart.request import Request, RequestInvalid
from warmstart.runner import Prepared
from warmstart.seed import node_cache, vote
from warmstart.seed.copies import FetchOverBudget
from warmstart.seed.vote import Cold, Proposed
from warmstart.steps.contract import Context, Outcome
from warmstart.store.barrier import Barrier
from warmstart.wings.trees import place, requests, shown, step
from warmstart.wings.trees.current import TreeUnusable
from warmstart.wings.trees.offered import PROFILE
from warmstart.wings.trees.requests import TreeRequest
from warmstart.wings.trees.step import Options

BARRIER = Barrier("c.7.0", "tree", "n[1-2]")


class Shown:
    """A job, its tree, and what was mounted for it."""

    def __init__(self, node: TreeSite, monkeypatch: pytest.MonkeyPatch, name: str = "env") -> None:
        self.node, self.tree = node, node.tree(name)
        self.context: Context = a_context(node.base)
        self.keep("50GiB")
        os.makedirs(self.context.run.directory)
        self.shared: SharedPath | None = None
        self.sources: list[str] = []  # of what the run shows
        self.started: list[object] = []
        monkeypatch.setattr(step, "LOOK_S", 30.0)  # a machine may be busy
        monkeypatch.setattr(shown, "mount", lambda *_: None)
        monkeypatch.setattr(step, "show", lambda _run, item, _uid: self.sources.append(item.source))
        monkeypatch.setattr(requests, "start_due", self.started.append)
        monkeypatch.setattr(node_cache, "mounted", self._mounted)

    def _mounted(self, _layers: str, paths: list[str], _deadline: object) -> list[int]:
        assert os.path.exists(paths[0])
        return [os.open(self.tree, os.O_RDONLY)]

    def keep(self, size: str) -> None:
        policy = offering(self.context.policy, trees={"prefixes": [str(self.tree.parent)], "keep": size})
        self.context = self.context._replace(policy=policy)

    def policy(self, **changes: object) -> None:
        self.context = self.context._replace(policy=self.context.policy._replace(**changes))  # type: ignore[arg-type]

    def share(self) -> None:
        self.shared = SharedPath(f"{self.tree.parent}/*", (User("ws-alice", NOT_ROOT),), "site", "everyone")

    def publish(self) -> None:
        assert self.node.ask(self.tree)
        self.node.pack()

    def step(self, *, tree: str = "", barrier: Barrier | None = None) -> Outcome:
        shared = (self.shared,) if self.shared else ()
        return step.run(self.context, Options(tree or str(self.tree), "", SCOPE, barrier=barrier, shared=shared))

    def run(self) -> tuple[str, ...]:
        return self.step().notices

    def event(self) -> tuple[str, str]:
        told = result(self.context)["trees"][-1]
        return told["way"], told.get("reason", "")

    def asked(self) -> list[TreeRequest]:
        return [item.request for item in requests.due(self.context.paths)]


@pytest.fixture
def site(node: TreeSite, monkeypatch: pytest.MonkeyPatch) -> Shown:
    return Shown(node, monkeypatch)


def test_without_a_copy_one_is_asked_for(site: Shown) -> None:
    (notice,) = site.run()
    assert notice.endswith("read-only; a copy is packed in the background")
    assert (site.event(), site.sources, len(site.started)) == (("itself", "no-copy"), [NOTHING], 1)
    assert [asked.tree for asked in site.asked()] == [str(site.tree)]


def test_a_copy_of_the_tree_as_it_is_is_shown(site: Shown) -> None:
    site.publish()
    assert (site.run(), site.event()) == ((), ("copy", ""))
    assert site.sources == [shown.SOURCE]
    os.utime(site.tree / "pyvenv.cfg", (time.time() - 5, time.time() - 5))
    site.run()
    assert site.event() == ("itself", "no-copy")


def test_of_a_tree_of_the_site_the_users_own_copy_is_not_looked_at(site: Shown) -> None:
    site.publish()
    site.share()
    site.run()
    assert site.event() == ("itself", "no-copy")
    (asked,) = site.asked()
    assert (asked.scope, asked.shared, asked.uid) == ("site", site.shared, site.context.run.uid)


def test_a_job_is_told_why_its_tree_was_not_packed(site: Shown) -> None:
    """And when; where it is tried again now, that it is."""
    site.share()
    site.run()
    again = rewrite(site, 60, problem="a/b: unreadable")
    (notice,) = site.run()
    assert notice.endswith(f"read-only; it was not packed: a/b: unreadable; it is tried again after {again} UTC")
    rewrite(site, requests.PACKS.backoff_s + 1, problem="a/b: unreadable")
    (notice,) = site.run()
    assert notice.endswith("read-only; a copy is packed in the background")


def rewrite(site: Shown, ago_s: float, **changes: str) -> str:
    """Have the one attempt at a request begun so long ago; return when the next one may begin, as clocks show it."""
    (item,) = requests.waiting(site.context.paths)
    due = int(time.time() - ago_s + requests.PACKS.backoff_s)
    tried = item.item._replace(attempts=1, due=due)
    Queue(site.context.paths, requests.PACKS).put(tried, item.request._replace(**changes))  # type: ignore[arg-type]
    return time.strftime("%H:%M", time.gmtime(due))


def test_a_pack_that_never_ended_is_not_called_one_that_runs(site: Shown, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(requests, "PACKS", requests.PACKS._replace(most=0))
        (notice,) = site.run()
        assert notice.endswith("read-only; too many of your trees wait to be packed already")
    site.run()
    again = rewrite(site, 60)
    (notice,) = site.run()
    (item,) = requests.waiting(site.context.paths)
    since = time.strftime("%H:%M", time.gmtime(item.item.tried(requests.PACKS)))
    assert notice.endswith(f"; a pack of it began at {since} UTC; another one may begin after {again} UTC")


def test_a_job_is_told_what_its_copy_lacks(site: Shown) -> None:
    lines = ["4", "fifo: neither file nor directory", "key: unreadable", "a: extended attributes", "b: unreadable"]
    (site.tree / place.LEFT_OUT).write_text("".join(f"{line}\n" for line in lines))  # the stand-in for a mounted copy
    site.publish()
    (notice,) = site.run()
    assert notice == f"tree {site.tree}: its copy lacks 4 things: {'; '.join(lines[1:4])}; …"


@pytest.mark.parametrize("name", ["env", "e:nv", "e nv", "\udcff"])
def test_runtimes_are_told_of_the_tree(node: TreeSite, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Where the policy leaves it to them, and as far as a variable and Apptainer can have the path."""
    site = Shown(node, monkeypatch, name)
    link = site.tree.with_name("link")
    link.symlink_to(site.tree)

    def told(way: str) -> tuple[bool, dict[str, str]]:
        site.policy(constant_path=way)
        outcome = site.step(tree=str(link))
        return "in containers read-only" in str(outcome.notices), outcome.environment

    def named(source: str) -> dict[str, str]:
        return {} if name == "\udcff" else {"WARMSTART_TREE": source}

    assert told("containers") == (True, named(str(site.tree)))
    site.publish()
    copy = f"{site.context.run.directory}/mounted/tree/tree"
    assert told("containers") == told("spank") == (False, named(copy))


def test_a_copy_that_does_not_come_in_time_is_not_shown(site: Shown, monkeypatch: pytest.MonkeyPatch) -> None:
    site.publish()

    def too_slow(*_: object, **__: object) -> None:
        raise FetchOverBudget(bundle="b", problem="it is too slow")

    with monkeypatch.context() as patch:
        patch.setattr(node_cache, "get", too_slow)
        (notice,) = site.run()
    assert (site.event(), site.sources) == (("itself", "fetch-over-budget"), [NOTHING])
    assert "read-only; its copy did not come in time" in notice
    assert (site.run(), site.event()) == ((), ("copy", ""))


def test_a_copy_larger_than_all_that_a_node_keeps_is_not_fetched(site: Shown) -> None:
    """The policy has changed since it was packed. What caches may take counts for nothing."""
    site.publish()
    (row,) = site.node.rows()
    for size, expected in ((row.size - 1, ("itself", "fetch-over-budget")), (row.size, ("copy", ""))):
        site.keep(f"{size}B")
        site.policy(seed=site.context.policy.seed._replace(keep=1))
        site.run()
        assert site.event() == expected


class Nodes:
    """What the other node of a job says, in place of the store."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, cold: str = "") -> None:
        self.own: dict[str, Proposed] = {}
        self.votes: list[dict[str, str]] = []
        self._cold = cold
        self.facts: dict[str, str] = {}
        monkeypatch.setattr(vote, "Vote", lambda *_: self)

    def proposal(self, own: dict[str, Proposed], _deadline: object) -> dict[str, Proposed]:
        self.own = own
        return {name: it._replace(facts=self.facts or it.facts) for name, it in own.items()}

    def settle(self, cold: dict[str, str], _deadline: object) -> dict[str, Cold]:
        self.votes.append(cold)
        return {PROFILE: Cold(self._cold or cold[PROFILE], ["n2"])} if self._cold or cold else {}


def agreed(site: Shown) -> tuple[str, str]:
    """Run the step on the head node of a job on two nodes; return the way and the reason."""
    assert site.step(barrier=BARRIER).topics == ("c.7.0/tree",)
    return site.event()


def test_one_node_that_lacks_the_copy_is_enough_for_all_to_read_the_tree_itself(
    site: Shown, monkeypatch: pytest.MonkeyPatch
) -> None:
    site.publish()
    nodes = Nodes(monkeypatch, cold="fetch-over-budget")
    assert (agreed(site), site.sources[-1]) == (("itself", "fetch-over-budget"), NOTHING)
    assert (nodes.votes, [*nodes.own]) == ([{}], [PROFILE])


def test_a_node_that_sees_another_tree_says_so(site: Shown, monkeypatch: pytest.MonkeyPatch) -> None:
    site.publish()
    nodes = Nodes(monkeypatch)
    nodes.facts = {"path": str(site.tree), "stamp": "ab" * 32}
    assert (agreed(site), nodes.votes) == (("itself", "nodes-differ"), [{PROFILE: "nodes-differ"}])


def test_the_head_node_without_a_copy_asks_for_it(site: Shown, monkeypatch: pytest.MonkeyPatch) -> None:
    nodes = Nodes(monkeypatch)
    assert (agreed(site), nodes.votes, nodes.own) == (("itself", "no-copy"), [], {})
    assert [asked.tree for asked in site.asked()] == [str(site.tree)]


def test_a_node_without_the_tree_lets_the_others_know(site: Shown, monkeypatch: pytest.MonkeyPatch) -> None:
    """They do not wait for it in vain."""
    nodes = Nodes(monkeypatch)
    with pytest.raises(TreeUnusable):
        site.step(tree=f"{site.tree}/gone", barrier=BARRIER)
    assert (nodes.own, site.sources) == ({}, [])


def test_a_store_that_fails_costs_the_copy_alone(site: Shown) -> None:
    os.rmdir(site.context.store.path)
    assert [error.code for error in site.step().degraded] == ["store-failed"]
    assert site.event() == ("itself", "store-failed")


@pytest.mark.threat(57)
@pytest.mark.parametrize(
    ("hours", "way", "asked"), [(11, "copy", 0), (13, "copy", 1), (23, "copy", 1), (25, "itself", 1)]
)
def test_an_old_copy_is_packed_anew(
    site: Shown, monkeypatch: pytest.MonkeyPatch, hours: float, way: str, asked: int
) -> None:
    """After twelve hours it is shown meanwhile, after a day it is not: no marker shows an edit in place."""
    site.publish()
    now = time.time()
    monkeypatch.setattr(step, "time", SimpleNamespace(time=lambda: now + hours * 3600, monotonic=time.monotonic))
    site.run()
    assert (site.event()[0], len(site.started)) == (way, asked)


ASKED = Request((), (), words={"tree": "/lustre/envs/train/"})
GRANT = Grant([], [], {}, [SCOPE], SCOPE, "")
OFFERED = offering(defaults(), trees={"prefixes": ["/lustre"]})._replace(constant_path="spank")


@pytest.mark.parametrize(("way", "cache", "words"), [("spank", "", "no workspace"), ("none", "/w", "constant_path")])
def test_a_copy_needs_a_way_to_the_job_and_a_workspace(way: str, cache: str, words: str) -> None:
    """Otherwise the step does not look at the tree, which the job reads as it is."""
    planned = step.planned(OFFERED._replace(constant_path=way), a_job(), GRANT, ASKED)  # type: ignore[arg-type]
    assert planned is not None
    context = SimpleNamespace(run=a_run(path=cache))
    (told,) = planned.run(cast("Context", context)).notices
    assert "/lustre/envs/train is read" in told
    assert words in told


def test_only_jobs_that_ask_have_the_step() -> None:
    """Where no trees are offered, a job that asks is told, and runs."""
    assert [step.name for step in plan.prolog(OFFERED, a_job(), GRANT, ASKED)] == ["workspace", "tree"]
    assert plan.prolog(OFFERED, a_job(), GRANT, Request((), ())) == []
    assert [step.name for step in plan.prolog(defaults(), a_job(), GRANT, ASKED)] == ["workspace"]
    prepared = Prepared(cast("Context", SimpleNamespace(run=a_run())), [])
    last = plan.environment(defaults(), a_job(), GRANT, ASKED, prepared)
    (told,) = last.run.keywords["options"].notices  # type: ignore[attr-defined]
    assert told.startswith("warmstart: tree=/lustre/envs/train/: read from the shared file system")


@pytest.mark.parametrize(
    ("word", "asked"),
    [
        ("/lustre/envs/train/", ("/lustre/envs/train", "")),
        ("/l/tools:etc/VERSION", ("/l/tools", "etc/VERSION")),
        ("/", None),
        ("envs", None),
        ("/a/../b", None),
        ("/a:/b", None),
        ("/a:../b", None),
    ],
)
def test_a_tree_is_an_absolute_path_and_perhaps_a_file_in_it(word: str, asked: tuple[str, str] | None) -> None:
    requested = ASKED._replace(words={"tree": word})
    if asked:
        assert step.asked(requested) == asked
    else:
        with pytest.raises(RequestInvalid):
            step.asked(requested)
