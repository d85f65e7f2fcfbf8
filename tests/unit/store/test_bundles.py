"""Offers, index, publishing and quotas, in this process. What is fetched and described is in test_client."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import shutil
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

import pytest

from tests.lib.bundles import OWNER, draft, memory_file, namespace, publish
from warmstart.errors import StoreError
from warmstart.store import atomic as publishing
from warmstart.store import bundles, index
from warmstart.store.bundles import BundleDamaged, Offer, Offers, Published, QuotaExceeded
from warmstart.store.layout import StoreFailed

pytestmark = pytest.mark.threat(15)


def offered(store: Path, *scopes: str) -> Offers:
    """Return the offers for a job that may read these scopes."""
    return bundles.offers(str(store), list(scopes or ("user-1",)), "numba", "ns", OWNER)


def entries(found: Offers) -> list[tuple[str, list[str]]]:
    return [(offer.scope, offer.entries) for offer in found.offers]


@pytest.mark.threat(8)
def test_an_entry_comes_from_one_bundle_the_oldest(tmp_path: Path) -> None:
    publish(tmp_path, "a", "b", content=b"1")
    publish(tmp_path, "b", "c", content=b"2")
    found = offered(tmp_path)
    assert entries(found) == [("user-1", ["a", "b"]), ("user-1", ["c"])]
    assert [offer.whole for offer in found.offers] == [True, False]


@pytest.mark.threat(8)
def test_the_more_trusted_scope_goes_first_though_younger(tmp_path: Path) -> None:
    publish(tmp_path, "a", "b", scope="user-1", content=b"1")
    publish(tmp_path, "b", scope="site", content=b"2")
    assert entries(offered(tmp_path, "site", "user-1")) == [("site", ["b"]), ("user-1", ["a"])]


def test_a_slow_clock_does_not_make_a_bundle_the_oldest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = publish(tmp_path, "a", content=b"1").bundle or ""
    monkeypatch.setattr(time, "time_ns", lambda: 0)
    second = publish(tmp_path, "a", "b", content=b"2").bundle or ""
    assert second > first
    assert entries(offered(tmp_path)) == [("user-1", ["a"]), ("user-1", ["b"])]


def forged(**changes: object) -> bytes:
    bundle = "20260101T000000.000000Z-" + "0" * 16
    names = changes.pop("entries", {"a": 3})
    listed = {"bundle": bundle, "sha256": "ab" * 32, "size": 5, "entries": {}, "user": "a", "uid": 1000, "number": 1}
    head = {"format": index.FORMAT, "plain": True, "bundles": [listed | {"replaces": []} | changes], "refused": {}}
    return f"{json.dumps(head)}\n{json.dumps(names)}".encode()


@pytest.mark.threat(6)
@pytest.mark.parametrize(
    "damage",
    [
        None, b"", b"{", b"[]", b'{"format": 2, "plain": true, "bundles": [{"bundle": 1}], "refused": {}}\n{}',
        forged(sha256="../../../../var/tmp/mine"), forged(sha256=7), forged(size="5"), forged(entries=["a"]),
        forged(uid="1000"), forged(entries={"a": "3"}), forged(entries={"a": 3, "b": 4}),
        forged().partition(b"\n")[0], forged() + b"\n{}", forged(entries={}), forged()[:-1],
    ],
)  # fmt: skip
def test_a_damaged_index_is_made_again(tmp_path: Path, damage: bytes | None) -> None:
    publish(tmp_path, "a", content=b"1")
    publish(tmp_path, "b", content=b"2")
    path = Path(namespace(tmp_path).path, index.NAME)
    good, before = path.read_bytes(), offered(tmp_path)
    path.unlink()
    if damage is not None:
        path.write_bytes(damage)
    assert offered(tmp_path) == before
    assert path.read_bytes() == good


def test_an_index_of_a_newer_format_is_left_to_publishers(tmp_path: Path) -> None:
    publish(tmp_path, "a", content=b"1")
    before = offered(tmp_path)
    path = Path(namespace(tmp_path).path, index.NAME)
    path.unlink()
    path.write_text('{"format": 3, "of": "the future"}')
    assert offered(tmp_path) == before
    assert "future" in path.read_text()
    publish(tmp_path, "b", content=b"2")
    assert json.loads(path.read_bytes().partition(b"\n")[0])["format"] == index.FORMAT
    assert entries(offered(tmp_path)) == [("user-1", ["a"]), ("user-1", ["b"])]


LONG = [f"{number}{'n' * 200}" for number in range(40)]


def unnamed(store: Path, *scopes: str) -> Offers:
    """Return the offers for a prolog, which need not have the names of entries."""
    return bundles.offers(str(store), list(scopes or ("user-1",)), "numba", "ns", OWNER, named=False)


@pytest.mark.threat(8)
@pytest.mark.parametrize("why", ["two have it", "other scope", "superseded", "damaged", "old format"])
def test_the_names_are_read_where_not_all_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, why: str) -> None:
    monkeypatch.setattr(index, "FIRST", 512)
    publish(tmp_path, *LONG[:20], content=b"1")
    publish(tmp_path, *LONG[19 if why == "two have it" else 20 :], content=b"2")
    path = Path(namespace(tmp_path).path, index.NAME)
    if why == "other scope":
        publish(tmp_path, LONG[3], "z", scope="site")
    elif why == "superseded":
        monkeypatch.setattr(index, "_taking_place", lambda *_: [LONG[5]])
        publish(tmp_path, LONG[5], content=b"3")
    elif why in ("damaged", "old format"):
        data = path.read_bytes()
        path.unlink()
        path.write_bytes(data[1:] if why == "damaged" else b'{"format":1,"bundles":[],"refused":{}}')
    found = unnamed(tmp_path, "site", "user-1")
    assert found == offered(tmp_path, "site", "user-1")
    assert sum(len(offer.entries) for offer in found.offers) >= 39


def failing(number: int) -> Callable[..., NoReturn]:
    def fail(*_args: object, **_kw: object) -> NoReturn:
        raise OSError(number, os.strerror(number))

    return fail


def test_a_full_store_after_the_links_does_not_take_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    publish(tmp_path, "a", content=b"1")
    monkeypatch.setattr(publishing, "replace", failing(errno.ENOSPC))
    made = publish(tmp_path, "b", content=b"2")
    assert made.bundle
    assert made.indexed is False
    monkeypatch.undo()
    publish(tmp_path, "c", content=b"3")
    assert [offer.entries for offer in offered(tmp_path).offers] == [["a"], ["b"], ["c"]]


@pytest.mark.parametrize(
    ("suffix", "content", "code"),
    [
        (".sqsh", b"", "bundle-damaged"),
        (".sqsh", b"squash", "bundle-damaged"),
        (".sqsh", b"squashfsX", "bundle-damaged"),
        (".sqsh", b"squashFS", "bundle-damaged"),
        (".sqsh", None, "bundle-gone"),  # maintenance has removed it, and the index is an old one
        (".json", b"{", "manifest-unreadable"),
    ],
)
def test_what_is_not_whole_is_not_handed_out(tmp_path: Path, suffix: str, content: bytes | None, code: str) -> None:
    publish(tmp_path, "a", content=b"squashfs")
    (offer,) = offered(tmp_path).offers
    path = Path(namespace(tmp_path).path, f"{offer.bundle}{suffix}")
    path.unlink()
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(StoreError) as raised:
        fetch(tmp_path, offer)
    assert raised.value.code == code


def fetch(store: Path, offer: Offer) -> None:
    with memory_file(b"") as copy:
        bundles.fetch(namespace(store), offer, copy)


def test_an_index_and_a_manifest_that_disagree(tmp_path: Path) -> None:
    publish(tmp_path, "a")
    (offer,) = offered(tmp_path).offers
    with pytest.raises(BundleDamaged, match="disagree"):
        fetch(tmp_path, offer._replace(sha256="00" * 32))
    with pytest.raises(ValueError, match="not a bundle's id"):
        fetch(tmp_path, offer._replace(bundle="../../x"))


def test_a_link_in_the_place_of_a_file_is_not_followed(tmp_path: Path) -> None:
    publish(tmp_path, "a")
    (offer,) = offered(tmp_path).offers
    secret = tmp_path / "secret"
    secret.write_text('{"format": 2, "plain": true, "bundles": [], "refused": {}}')
    path = Path(namespace(tmp_path).path)
    (path / index.NAME).unlink()
    (path / index.NAME).symlink_to(secret)
    assert entries(offered(tmp_path)) == [("user-1", ["a"])]
    assert not (path / index.NAME).is_symlink()
    (path / f"{offer.bundle}.sqsh").unlink()
    (path / f"{offer.bundle}.sqsh").symlink_to(secret)
    with pytest.raises(StoreFailed):
        fetch(tmp_path, offer)


# Quotas of scopes when something is published; what maintenance does about them is in test_maintenance.


def stored(store: Path, scope: str = "user-1") -> int:
    """Return the bytes of a scope's bundles, manifests and indexes."""
    return sum(path.stat().st_size for path in (store / "artifacts" / scope).rglob("*.*") if path.is_file())


def publish_within(store: Path, quota: int, *entries: str) -> Published:
    with memory_file(b"0123456789") as fd:
        return bundles.publish_bundle(namespace(store), fd, draft(*entries), OWNER, quota)


def test_the_last_byte_is_let_in_and_the_next_is_not(tmp_path: Path) -> None:
    publish(tmp_path, "theirs", scope="site", content=b"x" * 1000)
    publish_within(tmp_path, 1000, "a")
    one = stored(tmp_path)
    assert publish_within(tmp_path, 2 * one, "b").bundle
    used = stored(tmp_path)
    before = sorted(path.name for path in tmp_path.rglob("*"))
    with pytest.raises(QuotaExceeded, match=f"scope user-1 uses {used} of its {used + 100} bytes"):
        publish_within(tmp_path, used + 100, "c")
    assert sorted(path.name for path in tmp_path.rglob("*")) == before
    assert publish_within(tmp_path, 0, "c").bundle  # no quota


def test_a_harvest_is_spared_where_nothing_more_may_come(tmp_path: Path) -> None:
    publish_within(tmp_path, 0, "a")
    where = (namespace(tmp_path), OWNER, "a", 1000)
    used = stored(tmp_path)
    assert bundles.known_entries(*where, quota=used + 1) == ["a"]
    with pytest.raises(QuotaExceeded):
        bundles.known_entries(*where, quota=used)


def test_what_is_no_bundle_does_not_count(tmp_path: Path) -> None:
    publish_within(tmp_path, 0, "a")
    used = stored(tmp_path)
    folder = Path(namespace(tmp_path).path)
    (folder / ".tmp-x").write_bytes(b"x" * 100)
    (folder / "no-id.sqsh").write_bytes(b"x" * 100)
    (folder / "quarantine").mkdir()
    (folder.parent / "file").write_bytes(b"x" * 100)
    bundles.check_quota(str(tmp_path), "user-1", 10, used + 10)
    with pytest.raises(QuotaExceeded):
        bundles.check_quota(str(tmp_path), "user-1", 11, used + 10)


def fill(store: Path, namespaces: int) -> None:
    """Put two bundles into each of so many namespaces of one scope."""
    for number in range(namespaces):
        publish(store, "a", content=b"%d" % number)
        publish(store, "b", content=b"x%d" % number)
        Path(namespace(store).path).rename(Path(namespace(store).path).with_name(f"ns{number}"))


def calls_of(monkeypatch: pytest.MonkeyPatch, act: Callable[[], object]) -> list[str]:
    made: list[str] = []

    def noting(name: str) -> Callable[..., Any]:
        real = getattr(os, name)

        def call(*args: Any, **kw: Any) -> Any:  # noqa: ANN401
            made.append(name)
            return real(*args, **kw)

        return call

    with monkeypatch.context() as patched:
        for name in ("open", "stat", "listdir", "scandir", "mkdir", "link", "rename", "unlink"):
            patched.setattr(os, name, noting(name))
        act()
    return made


def sum_of(store: Path) -> Path:
    return store / "artifacts/locks/size.user-1"


@pytest.mark.parametrize("namespaces", [1, 30])
def test_the_quota_is_checked_with_few_calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, namespaces: int) -> None:
    fill(tmp_path, namespaces)
    bundles.check_quota(str(tmp_path), "user-1", 1, 1 << 30)
    for announced in (False, True):
        check = partial(bundles.check_quota, str(tmp_path), "user-1", 1, 1 << 30, announced=announced)
        assert calls_of(monkeypatch, check) == ["mkdir", "open", "open"]
    tomorrow = time.time() + 90_000
    monkeypatch.setattr(time, "time", lambda: tomorrow)
    assert len(calls_of(monkeypatch, check)) > 4 * namespaces


def test_what_was_announced_counts_until_the_scope_is_summed_up(tmp_path: Path) -> None:
    """A publisher that died takes room at most until nobody else has any: nobody is refused for it."""
    fill(tmp_path, 1)
    used = stored(tmp_path)
    check = partial(bundles.check_quota, str(tmp_path), "user-1")
    check(100, used + 150, announced=True)
    assert json.loads(sum_of(tmp_path).read_text())["used"] == used + 100
    check(100, used + 150, announced=True)
    with pytest.raises(QuotaExceeded, match=f"uses {used} of its {used + 150} bytes"):
        check(151, used + 150)


def test_a_scope_without_room_is_walked_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(tmp_path, 30)
    used = stored(tmp_path)

    def refused() -> None:
        with pytest.raises(QuotaExceeded):
            bundles.check_quota(str(tmp_path), "user-1", 1, used)

    refused()
    assert len(calls_of(monkeypatch, refused)) == 3
    shutil.rmtree(Path(namespace(tmp_path).path).with_name("ns0"))
    later = time.time() + 700
    monkeypatch.setattr(time, "time", lambda: later)
    bundles.check_quota(str(tmp_path), "user-1", 1, used)


@pytest.mark.threat(6)
@pytest.mark.parametrize(
    "damage",
    [
        b"", b"{", b"[]", b"7", b'{"used": 1}', b'{"used": "1", "announced": 0, "at": 1}', b"\xff" * 300,
        b'{"used": -9, "announced": 0, "at": %d}', b'{"used": 1, "announced": 0, "at": 1}', b"[" * 5000,
        b'{"used": 1, "announced": 0, "at": 99999999999}',
    ],
)  # fmt: skip
def test_a_sum_that_cannot_be_right_is_made_again(tmp_path: Path, damage: bytes) -> None:
    fill(tmp_path, 1)
    used = stored(tmp_path)
    bundles.check_quota(str(tmp_path), "user-1", 1, 1 << 30)
    sum_of(tmp_path).write_bytes(damage.replace(b"%d", b"%d" % time.time()))
    with pytest.raises(QuotaExceeded, match=f"uses {used} of"):
        bundles.check_quota(str(tmp_path), "user-1", 1, used)
    assert json.loads(sum_of(tmp_path).read_bytes()[:200])["used"] == used


def test_a_sum_that_can_not_be_kept_stops_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(tmp_path, 1)
    used = stored(tmp_path)
    monkeypatch.setattr(bundles, "SUM_LOCK_S", 0.0)
    check = partial(bundles.check_quota, str(tmp_path), "user-1", 1)
    for name, number in (("pwrite", errno.ENOSPC), ("mkdir", errno.EROFS)):
        with monkeypatch.context() as patched:
            patched.setattr(os, name, failing(number))
            check(used + 1)
    holder = os.open(sum_of(tmp_path), os.O_RDWR)
    fcntl.flock(holder, fcntl.LOCK_EX)
    check(used + 1)
    os.close(holder)
    with monkeypatch.context() as patched:
        patched.setattr(fcntl, "flock", failing(errno.ENOLCK))
        check(used + 1)
        with pytest.raises(QuotaExceeded):
            check(used)
