"""Bundles with the real tools and real uids: from a job's cache into the store and into another job's cache."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any, NamedTuple

import filelock  # noqa: F401 - so that not every child imports it
import pytest

from tests.lib import mounts
from tests.lib.accounts import STORE, Accounts
from tests.lib.bundles import draft
from warmstart.harvest.collect import Collected, HarvestLimits, Stage, collect
from warmstart.harvest.pack import pack
from warmstart.host.deadline import after
from warmstart.host.files import opened_dir
from warmstart.host.identity import Identity
from warmstart.seed.extract import ExtractionFailed, Source, extract
from warmstart.seed.node_cache import Copy, local_copy
from warmstart.store import locks
from warmstart.store.bundles import Offer, Published
from warmstart.store.client import StoreClient
from warmstart.store.layout import Namespace
from warmstart.store.manifest import Draft

pytestmark = pytest.mark.usefixtures("capable_host")

OWNER = Identity("the store's owner", 64210, 64210)
JOB = Identity("a job", 64201, 64201)
OTHER = Identity("another job", 64202, 64202)
ROUNDS = 8
CACHE = {
    "m/f.1.nbi": b"index",
    "m/f.1.nbc": os.urandom(300_000),
    "m/g <locals>.2.nbi": b"x" * 5000,
    "top.3.nbi": b"",
    "m/deep/er/h.4.nbi": b"h",
}


def entry_of(path: str) -> str:
    """Return a file's entry as the sample cache does: its name without the last suffix."""
    return path.rpartition(".")[0]


class Place(NamedTuple):
    """A store, and the disks of a node and its jobs."""

    base: Path
    store: str
    owner: Identity = OWNER

    def namespace(self, scope: str = "user-1") -> Namespace:
        return Namespace(self.store, scope, "numba", "ns")

    def new_dir(self, name: str, identity: Identity | None = None) -> Path:
        """Make a directory that belongs to root, mode 0700, or to `identity`."""
        path = self.base / name
        path.mkdir(0o700)
        if identity is not None:
            os.chown(path, identity.uid, identity.gid)
        return path

    def offers(self, *scopes: str) -> list[Offer]:
        with self.client() as client:
            found = client.offers(list(scopes or ("user-1",)), "numba", "ns", after(20))
        assert found.refused == {}
        return found.offers

    def copy(self, offer: Offer, most_bytes: int = 1 << 30, seconds: float = 20) -> Copy:
        where = self.namespace(offer.scope)
        directory = str(self.base / "bundles")
        with self.client() as store:
            deadline = after(seconds)
            return local_copy(directory, where, offer, store=store, most_bytes=most_bytes, deadline=deadline)

    def publish(self, *entries: str, content: bytes = b"bytes", scope: str = "user-1") -> Published:
        """Publish bytes that are not a squashfs as a bundle with these entries."""
        fd = os.memfd_create("bundle")
        try:
            os.write(fd, content)
            return self.publish_fd(fd, draft(*entries), scope)
        finally:
            os.close(fd)

    def publish_fd(self, fd: int, text: Draft, scope: str = "user-1") -> Published:
        with self.client() as client:
            return client.publish(self.namespace(scope), fd, text, after(20))

    def client(self) -> StoreClient:
        return StoreClient(self.owner, self.store, "n1-test")


@pytest.fixture
def base(base: Path) -> Path:
    """Yield a directory that other uids can traverse, with a place for logs."""
    (base / "log").mkdir()
    return base


@pytest.fixture(params=["local", "squashed"])
def place(request: pytest.FixtureRequest, base: Path) -> Iterator[Place]:
    """Yield a store of its owner, in a plain directory and on a file system that refuses even root."""
    if request.param == "local":
        yield Place(base, str(backed(base, OWNER)))
        return
    accounts = Accounts(base / "homes")
    try:
        account = accounts[STORE]
        owner = Identity(account.name, account.uid, account.gid)
        with mounts.squashed(base, backed(base, owner), base / "mounted", account) as target:
            with pytest.raises(PermissionError):
                os.listdir(target)
            yield Place(base, str(target), owner)
    finally:
        accounts.close()


def backed(base: Path, owner: Identity) -> Path:
    backing = base / "store"
    backing.mkdir(0o755)
    os.chown(backing, owner.uid, owner.gid)
    return backing


@pytest.fixture
def local(base: Path) -> Place:
    return Place(base, str(backed(base, OWNER)))


def harvested(place: Place, content: dict[str, bytes], name: str = "a") -> tuple[int, Collected]:
    """Write a cache as the job, collect it and pack it. Return the bundle and its entries."""
    cache = place.new_dir(f"cache-{name}", JOB)
    for path, data in content.items():
        (cache / path).parent.mkdir(parents=True, exist_ok=True)
        (cache / path).write_bytes(data)
        os.utime(cache / path, ns=(7, 1_700_000_000_500_000_000))
    subprocess.run(["/bin/chown", "-R", f"{JOB.uid}:{JOB.gid}", str(cache)], check=True)
    stage = place.new_dir(f"stage-{name}")
    with opened_dir(str(place.base)) as top, opened_dir(str(stage)) as fd:
        found = collect(
            top, cache.name,
            owner=JOB.uid,
            entry_of=entry_of,
            skip=(),
            stage=Stage(fd),
            limits=HarvestLimits(1 << 30, 1000, after(20)),
        )  # fmt: skip
    return pack(str(stage), str(place.base / f"{name}.sqsh"), after(20)), found


def seeded(place: Place, sources: list[Source], identity: Identity = OTHER) -> dict[str, bytes]:
    """Extract into a new cache of `identity`, check the files' owner, and return its contents."""
    cache = place.new_dir(f"seeded-{len(os.listdir(place.base))}", identity)
    with opened_dir(str(cache)) as fd:
        extract(sources, fd, "numba", identity, after(20))
    paths = [cache / "numba", *(cache / "numba").rglob("*")]
    assert {(path.lstat().st_uid, path.lstat().st_gid) for path in paths} == {(identity.uid, identity.gid)}
    assert {oct(path.lstat().st_mode) for path in paths[1:]} <= {"0o40777", "0o100666"}
    assert oct(paths[0].lstat().st_mode) == "0o40700"
    return {str(path.relative_to(cache / "numba")): path.read_bytes() for path in paths if path.is_file()}


@pytest.mark.threat(5)
def test_from_one_jobs_cache_into_anothers(place: Place) -> None:
    fd, found = harvested(place, CACHE)
    made = place.publish_fd(fd, draft()._replace(entries=found.entries))
    os.close(fd)
    (offer,) = place.offers()
    assert (offer.bundle, offer.size, offer.whole) == (made.bundle, made.size, True)
    copy = place.copy(offer)
    assert copy.fetched == offer.size
    assert seeded(place, [Source(copy.path, None)]) == CACHE
    again = place.copy(offer)
    assert (again.fetched, again.path) == (0, copy.path)
    seeds = next(place.base.glob("seeded-*"))
    assert (seeds / "numba/m/f.1.nbi").stat().st_mtime == 1_700_000_000


def test_a_failed_extraction_leaves_nothing(local: Place) -> None:
    fd, _ = harvested(local, {f"e{number}.1.x": os.urandom(200_000) for number in range(20)})
    os.close(fd)
    with mounts.tmpfs(local.base / "small", size="1m") as small:
        os.chown(small, JOB.uid, JOB.gid)
        with opened_dir(str(small)) as parent, pytest.raises(ExtractionFailed):
            extract([Source(str(local.base / "a.sqsh"), None)], parent, "numba", JOB, after(20))
        assert os.listdir(small) == []


@pytest.mark.threat(4)
def test_a_link_in_the_job_cache_leads_extraction_nowhere_of_roots(local: Place) -> None:
    fd, _ = harvested(local, {"m/f.1.x": b"mine"})
    os.close(fd)
    roots = local.new_dir("roots")
    cache = local.new_dir("cache", JOB)
    (cache / "numba").mkdir()
    (cache / "numba/m").symlink_to(roots)
    subprocess.run(["/bin/chown", "-hR", f"{JOB.uid}:{JOB.gid}", str(cache)], check=True)
    with opened_dir(str(cache)) as parent, pytest.raises(ExtractionFailed):
        extract([Source(str(local.base / "a.sqsh"), None)], parent, "numba", JOB, after(20))
    assert os.listdir(roots) == []


def test_one_node_fetches_a_bundle_once(local: Place) -> None:
    local.publish("a", content=os.urandom(4_000_000))
    (offer,) = local.offers()
    fetched = in_processes(8, lambda _: local.copy(offer).fetched)
    assert sorted(fetched) == [0] * 7 + [offer.size]


def in_processes(count: int, act: Callable[[int], object]) -> list[Any]:
    """Run `act(number)` in that many processes at once. Return their results, passed as JSON."""
    running = []
    for number in range(count):
        read, write = os.pipe()
        pid = os.fork()
        if not pid:
            status = 1
            try:
                os.write(write, json.dumps(act(number)).encode())
                status = 0
            finally:
                os._exit(status)
        os.close(write)
        running.append((pid, read))
    answers = []
    for pid, read in running:
        with open(read, "rb") as pipe:
            answers.append(pipe.read())
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    return [json.loads(answer) for answer in answers]


def seen(place: Place) -> dict[str, str]:
    """Read every offered entry whole. Return the bundle that each comes from."""
    found: dict[str, str] = {}
    for offer in place.offers():
        fd = os.memfd_create("copy")
        with place.client() as client:
            where = place.namespace(offer.scope)
            files = client.fetch(where, offer, after(20), into=fd)
        os.close(fd)
        assert set(offer.entries) <= files.keys()
        for entry in offer.entries:
            assert entry not in found
            found[entry] = offer.bundle
    return found


@pytest.mark.threat(16)
@pytest.mark.parametrize("locked", [True, False])
def test_four_publishers_of_the_same_entries(local: Place, monkeypatch: pytest.MonkeyPatch, locked: bool) -> None:
    if not locked:
        monkeypatch.setattr(locks, "publish_lock", lambda *_: nullcontext())

    def act(number: int) -> object:
        if number == 4:
            return [seen(local) for _ in range(ROUNDS * 2)]
        for turn in range(ROUNDS):
            local.publish(f"shared-{turn}", f"own-{number}-{turn}", content=b"%d %d" % (number, turn))
        return None

    *_, observed = in_processes(5, act)
    final = seen(local)
    assert len(final) == ROUNDS * 5
    if locked:
        assert all(final.items() >= moment.items() for moment in observed)
