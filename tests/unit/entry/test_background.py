"""What hooks had no time for, done off the clock of jobs: what becomes of it, and who is told."""

from __future__ import annotations

import json
import os
import subprocess
import time
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.support.asked_trees import ask, offer_trees, packs
from tests.support.bundles import ASKER, publish
from tests.support.entry_site import NODE, SCOPE, EntrySite
from tests.support.runs import a_record
from warmstart import run_end
from warmstart.entry import background
from warmstart.harvest import deferred
from warmstart.host import files, process
from warmstart.host.deadline import Deadline
from warmstart.host.files import opened_dir
from warmstart.paths import NodePaths
from warmstart.policy.compiled import User
from warmstart.policy.match import GrantedTree
from warmstart.record import Record
from warmstart.run_end import WorkspaceBusy
from warmstart.seed import wanted
from warmstart.seed.wanted import Wanted
from warmstart.store import bundles
from warmstart.store.bundles import Offer
from warmstart.trees import current, place, requests
from warmstart.trees.requests import TreeRequest

ABOUT = {"profile": "numba", "namespace": "ns", "scope": "user-1"}


@pytest.fixture(autouse=True)
def busy(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave the priority of the tests as it is."""
    monkeypatch.setattr(process, "be_idle", lambda: None)


@pytest.fixture
def site(entry_site: EntrySite) -> EntrySite:
    """Return an installation with a node that hooks have used."""
    for directory in (entry_site.paths.state, entry_site.paths.bundles):
        os.makedirs(directory, mode=0o700)
    return entry_site


def offered(site: EntrySite, content: bytes = b"squashfs") -> Offer:
    """Publish a bundle; return what jobs are offered of it."""
    made = publish(site.store, "a", content=content)
    found = bundles.offers(str(site.store), ["user-1"], "numba", "ns", "n1-test")
    return next(offer for offer in found.offers if offer.bundle == made.bundle)


def want(site: EntrySite, offer: Offer, **changes: Any) -> None:  # noqa: ANN401 - fields of Wanted
    """Have a bundle fetched, as a prolog of job 7 does."""
    item = Wanted(offer.sha256, offer.size, "user-1", "numba", "ns", offer.bundle, ASKER, 1000.0)
    with opened_dir(site.paths.bundles) as fd:
        assert wanted.add(fd, item._replace(**changes))


def run(site: EntrySite, what: str = wanted.FETCHES, node: str = NODE) -> int:
    """Run the program."""
    return background.main(site.installation.prefix, [what, node])


def there(site: EntrySite) -> set[str]:
    """Return what the node has of bundles, without their hashes."""
    return {name.partition(".")[2] for name in os.listdir(site.paths.bundles)}


def test_what_is_wanted_is_fetched(site: EntrySite) -> None:
    """The audit says so under the job that asked; a second run finds nothing to do."""
    offer = offered(site)
    want(site, offer)
    assert (run(site), run(site)) == (0, 0)
    assert there(site) == {"sqsh", "files.json", "origin.json"}
    (event,) = site.events("bundle.fetched")
    assert {name: event[name] for name in ABOUT} == ABOUT
    assert (event["bundle"], event["size"], event["attempt"]) == (offer.bundle, offer.size, 1)
    assert (event["job_id"], event["user"], event["done_by"]) == (7, "ws-alice", {"hook": "background"})


def test_what_is_gone_is_not_tried_again(site: EntrySite) -> None:
    """What the store offers to nobody, is not needed by anybody."""
    offer = offered(site)
    want(site, offer, bundle="20200101T000000.000000Z-0123456789abcdef", sha256="cd" * 32)
    assert run(site) == 0
    assert there(site) == set()
    (event,) = site.events("bundle.fetch-failed")
    assert (event["error"]["code"], event["again"]) == ("bundle-not-offered", False)


def test_what_failed_is_tried_later(site: EntrySite) -> None:
    """A store that is away, a damaged bundle: not at once, however often the program is started."""
    offer = offered(site)
    want(site, offer)
    (stored,) = site.store.rglob("*.sqsh")
    stored.chmod(0o600)
    stored.write_bytes(b"x" * offer.size)
    assert (run(site), run(site)) == (0, 0)
    assert there(site) == {"wanted.json"}
    (event,) = site.events("bundle.fetch-failed")
    assert (event["error"]["code"], event["again"], event["attempt"]) == ("bundle-damaged", True, 1)


def test_limits_are_those_of_the_policy_in_force(site: EntrySite) -> None:
    """They may have been lowered since a job asked."""
    want(site, offered(site))
    site.write(site.policy._replace(seed=site.policy.seed._replace(max_fetch=7)))
    run(site)
    (event,) = site.events("bundle.fetch-failed")
    assert (event["error"]["code"], there(site)) == ("fetch-over-budget", {"wanted.json"})


def test_one_process_of_a_node_fetches(site: EntrySite) -> None:
    """So that the rate is the node's."""
    want(site, offered(site))
    with files.opened_lock(site.paths.locks, wanted.FETCHES) as fd:
        assert files.try_flock(fd)
        assert run(site) == 0
    assert there(site) == {"wanted.json"}


@pytest.mark.threat(41)
def test_scopes_take_turns(site: EntrySite, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that wants many keeps no other waiting, also where each of its bundles comes at once."""
    offer, order = offered(site), []

    def fetch(_session: object, item: Wanted) -> None:
        order.append(item.scope)
        with opened_dir(site.paths.bundles) as fd:
            wanted.forget(fd, item.sha256)

    for number in range(3):
        want(site, offer, sha256=f"{number:064}", asked=1000.0 + number)
    want(site, offer, sha256="f" * 64, scope="user-2", asked=2000.0)
    monkeypatch.setattr(background, "_fetch", fetch)
    run(site)
    assert order == ["user-1", "user-2", "user-1", "user-1"]


@pytest.fixture
def tree(site: EntrySite, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Have a tree packed that a job of this account has asked for."""
    path = offer_trees(site, monkeypatch, max_files=3)
    ask(site, path)
    return path


def test_a_tree_is_packed_once(site: EntrySite, tree: Path) -> None:
    """Its copy has the tree below a directory that only its user enters; nothing stays, of a killed attempt either."""
    Path(site.paths.trees, "stage", "tree").mkdir(parents=True)
    Path(site.paths.trees, "packed.sqsh").write_text("half")
    assert packs(site) == 0
    (packed,) = site.events("tree.packed")
    assert (packed["tree"], packed["files"], packed["bytes"], packed["left_out"]) == (str(tree), 3, 1, 0)
    assert os.listdir(site.paths.trees) == []
    (bundle,) = site.store.rglob("*.sqsh")
    listed = subprocess.run(["/usr/bin/unsquashfs", "-lln", bundle], check=True, capture_output=True, text=True).stdout
    found = {line.rpartition(" ")[2]: line.split()[:2] for line in listed.splitlines() if "squashfs-root" in line}
    owner = f"{os.getuid()}/{os.getgid()}"
    assert found["squashfs-root"] == ["drwx------", owner]
    assert found["squashfs-root/tree/lib/empty.py"][1] == owner
    ask(site, tree, job=8)
    assert packs(site) == 0
    assert len(site.events("tree.packed")) == 1
    assert os.listdir(site.paths.trees) == []


@pytest.mark.threat(50)
def test_what_cannot_be_packed_waits(site: EntrySite, tree: Path) -> None:
    """A tree that is too large, or that changes meanwhile, leaves nothing but the request for a later attempt."""
    (tree / "more").write_text("")
    assert (packs(site), packs(site)) == (0, 0)
    (failed,) = site.events("tree.pack-failed")
    assert (failed["error"]["code"], failed["attempt"]) == ("tree-too-large", 1)
    (name,) = os.listdir(site.paths.trees)
    assert name.endswith(requests.SUFFIX)
    assert list(site.store.rglob("*.sqsh")) == []


def shared(site: EntrySite, tree: Path, owner: User) -> None:
    """Have a tree packed for the site, that one account may have files in; a job of another account asks."""
    granted = GrantedTree(f"{tree.parent}/*", (User("ws-nobody", 1), owner), "site", "", "everyone")
    whose = ("site", "ws-bob", os.getuid(), os.getgid())
    asked = TreeRequest(str(tree), "", *whose, "test", 9, NODE, time.time(), shared=granted)
    assert requests.ask(site.paths, asked)


@pytest.mark.threat(54)
def test_the_copy_of_many_is_roots_and_its_producer_is_who_owns_the_tree(site: EntrySite, tree: Path) -> None:
    """So that blocking who wrote it takes it away, and blocking who asked for it does not."""
    owner = User("ws-alice", tree.stat().st_uid)
    shared(site, tree, owner)
    assert packs(site) == 0
    packed = site.events("tree.packed")
    assert [(event["scope"], event["user"]) for event in packed] == [(SCOPE, "ws-alice"), ("site", "ws-bob")]
    (bundle,) = (site.store / "artifacts" / "site").rglob("*.sqsh")
    listed = subprocess.run(["/usr/bin/unsquashfs", "-lln", bundle], check=True, capture_output=True, text=True).stdout
    found = [line.split()[1] for line in listed.splitlines() if "squashfs-root" in line]
    assert {*found} == {f"0/{tree.stat().st_gid}"}
    made = json.loads(bundle.with_suffix(".json").read_text())
    assert [made["producer"]["user"], made["producer"]["uid"]] == [*owner]
    assert made["facts"]["owners"] == f"1 {owner.uid}"


@pytest.mark.threat(54)
def test_what_cannot_be_shared_is_told_to_whoever_asks(site: EntrySite, tree: Path) -> None:
    """With the file and what is wrong with it; another user's wish does not have it tried again at once."""
    (tree / "pyvenv.cfg").chmod(0o664)
    shared(site, tree, User("ws-alice", tree.stat().st_uid))
    assert packs(site) == 0
    (failed,) = site.events("tree.pack-failed")
    problem = "pyvenv.cfg: others than its owner may write it; so no copy is made of it"
    assert failed["error"]["code"] == "tree-not-shared"
    assert failed["error"]["reason"].endswith(problem)
    (waiting,) = requests.waiting(site.paths)
    other = requests.ask(site.paths, waiting._replace(uid=7, user="ws-carol", attempts=0, tried=0.0, problem=""))
    assert other is not None
    assert other.problem.endswith(problem)
    assert requests.due(site.paths) == []


def limit(site: EntrySite, *, keep: int) -> None:
    """Change how many bytes of trees a node keeps."""
    site.write(site.policy._replace(trees=site.policy.trees._replace(keep=keep)))


def test_a_tree_that_no_node_may_keep_is_not_published(site: EntrySite, tree: Path) -> None:
    """Each job would be told that it cannot be fetched."""
    limit(site, keep=100)
    assert packs(site) == 0
    (failed,) = site.events("tree.pack-failed")
    assert failed["error"]["code"] == "tree-too-large"
    assert "nodes keep 100 of all trees" in failed["error"]["reason"]
    assert list(site.store.rglob("*.sqsh")) == []


def test_a_pack_makes_room_in_the_quota_of_its_scope(site: EntrySite, tree: Path) -> None:
    """By the copy that no job has used for longest, at once: maintenance looks once a day. One in use stays."""
    assert packs(site) == 0
    (first,) = site.store.rglob("*.sqsh")
    quota = site.policy.maintenance._replace(per_user=first.stat().st_size * 2)
    site.write(site.policy._replace(maintenance=quota))
    os.utime(tree, (1, 1))
    ask(site, tree)
    assert packs(site) == 0
    assert [event["error"]["code"] for event in site.events("tree.pack-failed")] == ["cache-quota-exceeded"]
    os.utime(first, (time.time() - 4 * 3600, time.time() - 4 * 3600))
    (item,) = requests.waiting(site.paths)
    requests.renew(site.paths, item._replace(attempts=0, tried=0.0))
    assert packs(site) == 0
    (removed,) = site.events("bundle.removed")
    assert (removed["bundle"], removed["tree"]) == (first.stem, str(tree))
    assert [path != first for path in site.store.rglob("*.sqsh")] == [True]


def test_a_large_tree_is_bounded_by_its_own_quota_alone(site: EntrySite, tree: Path) -> None:
    """Neither by what a job's caches may take nor by what a node keeps of them; and none of these goes for it."""
    assert packs(site) == 0
    seen = current.look(str(tree), [str(tree.parent)], "", [])
    where = place.place_of(str(site.store), SCOPE, place.facts_of(seen, None))
    (offer,) = bundles.offers(where.store, [SCOPE], where.profile, where.name, "n1-test").offers
    cache = Path(site.paths.bundles, f"{'ab' * 32}.sqsh")
    cache.write_bytes(b"x" * 100)
    os.utime(cache, (1, 1))
    site.write(site.policy._replace(seed=site.policy.seed._replace(max_fetch=100, keep=100)))
    wish = Wanted(offer.sha256, offer.size, SCOPE, where.profile, where.name, offer.bundle, ASKER, 1000.0)
    limit(site, keep=100)
    with opened_dir(site.paths.bundles) as fd:
        wanted.write(fd, wish)
    run(site)
    (failed,) = site.events("bundle.fetch-failed")
    assert "more than trees.keep" in failed["error"]["reason"]
    limit(site, keep=offer.size)
    with opened_dir(site.paths.bundles) as fd:
        wanted.write(fd, wish)
    run(site)
    assert Path(site.paths.bundles, f"{offer.sha256}.sqsh").stat().st_size == offer.size > 100
    assert cache.exists()


def test_one_node_packs_a_tree(site: EntrySite, tree: Path) -> None:
    """Another one that is at it is enough."""
    seen = current.look(str(tree), [str(tree.parent)], "", [])
    where = place.place_of(str(site.store), SCOPE, place.facts_of(seen, None))
    with site.client() as store, store.locked_namespace(where, Deadline(time.monotonic() + 9)) as is_ours:
        assert is_ours
        assert packs(site) == 0
    assert site.events("tree.packed") == []


def left(site: EntrySite, number: int, *files: str, uid: int = 0) -> Path:
    """Leave a run of which its epilog could not remove these files; return where they are."""
    record = a_record(job_id=number, run_id=f"{number:08x}", uid=uid, workspace=str(site.root / "workspace"))
    tree = site.root / "workspace" / NODE / run_end.REMOVING / record.run_name
    for name in files:
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        (tree / name).write_text("x")
    deferred.defer(site.paths.removals, record, float(number))
    return tree


def test_what_hooks_left_is_removed(site: EntrySite) -> None:
    """Also while warmstart is off, as when it is uninstalled; nothing stays but the workspaces' own directory."""
    trees = [left(site, number, "tmp/a", "cache/b/c") for number in (1, 2)]
    Path(site.installation.off_switch).touch()
    assert run(site, run_end.REMOVALS) == 0
    assert os.listdir(site.root / "workspace" / NODE) == os.listdir(site.paths.removals) == []
    assert [event["run"] for event in site.events("removal.finished")] == [tree.name for tree in trees]
    assert [event["job_id"] for event in site.events("removal.finished")] == [1, 2]


@pytest.mark.threat(43)
def test_users_take_turns(site: EntrySite, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever's runs have taken least time is next, so a small run does not wait for many large ones."""
    for number, uid in ((1, 11), (2, 11), (3, 22)):
        left(site, number, "tmp/a", uid=uid)
    clock, slices = [0.0], {"1.00000001": 3, "2.00000002": 1, "3.00000003": 2}
    order: list[str] = []

    def finish(_paths: object, record: Record, _deadline: object) -> bool:
        clock[0] += background.SLICE_S
        order.append(record.run_name)
        slices[record.run_name] -= 1
        if not slices[record.run_name]:
            deferred.forget(site.paths.removals, record.run_name)
        return not slices[record.run_name]

    monkeypatch.setattr(run_end, "finish_removal", finish)
    monkeypatch.setattr(background, "time", SimpleNamespace(monotonic=lambda: clock[0], time=time.time))
    assert run(site, run_end.REMOVALS) == 0
    assert [name[0] for name in order] == ["1", "3", "1", "3", "1", "2"]


@pytest.mark.threat(43)
def test_a_run_that_cannot_be_removed_keeps_no_other(site: EntrySite, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its failure is audited, and one that never ends has an end; maintenance tries both again."""
    trees = [left(site, number, "tmp/a") for number in (1, 2, 3)]
    Path(site.paths.removals, "4.00000004.json").write_text("{")
    real, times = run_end.finish_removal, []

    def finish(paths: NodePaths, record: Record, deadline: Deadline) -> bool:
        if record.job_id == 1:
            raise WorkspaceBusy(path=record.run_directory, problem="busy")
        if record.job_id == 2:
            times.append(1)
            return False
        return real(paths, record, deadline)

    monkeypatch.setattr(run_end, "finish_removal", finish)
    ticks = count()
    monkeypatch.setattr(background, "time", SimpleNamespace(monotonic=lambda: 100.0 * next(ticks), time=time.time))
    assert run(site, run_end.REMOVALS) == 0
    assert [tree.exists() for tree in trees] == [True, True, False]
    assert len(times) == background.RUN_S / 100
    assert sorted(os.listdir(site.paths.removals)) == ["1.00000001.json", "2.00000002.json"]
    assert [event["error"]["code"] for event in site.events("step.failed")] == ["workspace-busy"]


def test_it_does_nothing_that_nobody_asked_for(site: EntrySite, capsys: pytest.CaptureFixture[str]) -> None:
    """On no node of another host, and nowhere while warmstart is off."""
    want(site, offered(site))
    assert [run(site, "all"), run(site, node="n2"), run(site, node="../n1")] == [background.WRONG_USAGE] * 3
    assert "usage: background" in capsys.readouterr().err
    Path(site.installation.off_switch).touch()
    assert run(site) == 0
    assert there(site) == {"wanted.json"}
