"""Results of the store's process are checked before root uses them."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from warmstart.store.maintenance import Bundle

from tests.lib.bundles import OWNER, PRODUCER, draft, namespace
from tests.lib.worker_calls import put_in_place
from warmstart.host.deadline import after
from warmstart.host.identity import Identity, WorkerAnswerMalformed, WorkerDied, WorkerSilent
from warmstart.store import bundles, index, maintenance
from warmstart.store.bundles import BundleGone, Offer, Offers
from warmstart.store.client import StoreClient
from warmstart.store.layout import Namespace
from warmstart.store.manifest import File, Manifest, ManifestUnreadable

pytestmark = pytest.mark.threat(6)

SHA = "ab" * 32
BUNDLE = "20260101T000000.000000Z-abababababababab"
AN_OFFER = Offer("user-1", BUNDLE, SHA, 1, ["a"], True)


@pytest.fixture
def client(tmp_path: Path) -> Iterator[StoreClient]:
    """Return a client of an empty store that this process owns."""
    with StoreClient(Identity("me", os.getuid(), os.getgid()), str(tmp_path), OWNER) as made:
        yield made


def test_what_is_published_is_offered_fetched_and_described(client: StoreClient, tmp_path: Path) -> None:
    where = namespace(tmp_path)
    assert client.offers(["user-1"], "numba", "ns", after(10)) == Offers([], {})
    assert os.listdir(tmp_path) == []
    squashfs = os.memfd_create("bundle")
    os.write(squashfs, b"squashfs")
    made = client.publish(where, squashfs, draft("a"), after(10), quota=1000)
    assert (made.size, made.indexed) == (8, True)
    (offer,) = client.offers(["user-1"], "numba", "ns", after(10)).offers
    assert (offer.bundle, offer.entries, offer.whole) == (made.bundle, ["a"], True)
    left = [path for path in Path(where.path).iterdir() if path.is_file()]
    assert {path.name for path in left} == {f"{made.bundle}.sqsh", f"{made.bundle}.json", index.NAME}
    assert {path.stat().st_mode & 0o7777 for path in left} == {0o444}
    copy = os.memfd_create("copy")
    files = client.fetch(where, offer, after(10), into=copy)
    assert (files, os.pread(copy, 100, 0)) == (draft("a").entries, b"squashfs")
    found = client.manifest(where, offer.bundle, after(10))
    assert (found.producer, found.entries) == (PRODUCER, {"a": {"a.nbi": File(3, SHA, 17)}})
    assert client.run_in(after(10), bundles.known_entries, where, "a", 1000) == ["a"]
    assert client.run_in(after(10), bundles.reindex, where).bundles == 1
    with pytest.raises(BundleGone):
        client.manifest(where, BUNDLE, after(10))
    for fd in (squashfs, copy):
        os.close(fd)


def test_a_look_up_whose_process_dies_is_asked_again(client: StoreClient, monkeypatch: pytest.MonkeyPatch) -> None:
    ask = partial(client.offers, ["user-1"], "numba", "ns")
    assert ask(after(10)).offers == []
    os.kill(client.worker._pid, signal.SIGKILL)
    assert ask(after(10)).offers == []
    client.close()
    put_in_place(monkeypatch, bundles, "offers", die)
    with pytest.raises(WorkerDied) as raised:
        ask(after(10))
    assert str(raised.value) == f"the store {client.path}: the helper process that was at work there died"
    with pytest.raises(WorkerSilent, match=f"^the store {client.path}: no time was left"):
        ask(after(0))


def die(_store: str, _scopes: list[str], _profile: str, _namespace: str, _writer: str) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.threat(24)
def test_an_operation_that_is_late_does_not_give_the_lock_back(client: StoreClient) -> None:
    assert client.lock(after(10))
    with pytest.raises(WorkerSilent):
        client.run(after(0), maintenance.scopes)
    with StoreClient(client.worker.identity, client.path, OWNER) as other:
        assert not other.lock(after(10))


@pytest.mark.parametrize(
    "wrong",
    [
        AN_OFFER._replace(sha256="../../../var/tmp/mine"),
        AN_OFFER._replace(bundle="../x"),
        AN_OFFER._replace(scope="site"),
    ],
)
def test_an_offer_names_no_path_and_no_scope_of_others(
    client: StoreClient, monkeypatch: pytest.MonkeyPatch, wrong: Offer
) -> None:
    """Root uses the SHA-256 as a file name on the node."""
    monkeypatch.setattr(f"{__name__}.TOLD", wrong)
    put_in_place(monkeypatch, bundles, "offers", forged_offers)
    with pytest.raises(WorkerAnswerMalformed, match="offers"):
        client.offers(["user-1"], "numba", "ns", after(10))


def test_a_bundles_files_lie_below_it(client: StoreClient, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Root makes whiteouts at these paths."""
    put_in_place(monkeypatch, bundles, "fetch", forged_fetch)
    with pytest.raises(WorkerAnswerMalformed, match="not valid in a manifest"):
        client.fetch(namespace(tmp_path), Offer("user-1", BUNDLE, SHA, 1, [], whole=True), after(10), into=1)


def test_a_manifest_keeps_its_rules(client: StoreClient, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Root unpacks the files that a manifest names."""
    put_in_place(monkeypatch, bundles, "read_manifest", forged_manifest)
    with pytest.raises(ManifestUnreadable, match="names of files"):
        client.manifest(namespace(tmp_path), BUNDLE, after(10))


def test_a_survey_names_no_path(client: StoreClient, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Root makes directories of an export with these names."""
    put_in_place(monkeypatch, maintenance, "survey", forged_survey)
    with pytest.raises(WorkerAnswerMalformed, match="survey"):
        client.survey(namespace(tmp_path), after(10))


TOLD = AN_OFFER


def forged_offers(_store: str, _scopes: list[str], _profile: str, _namespace: str, _owner: str) -> Offers:
    return Offers([TOLD], {})


def forged_fetch(_where: Namespace, _offer: Offer, _fd: int) -> dict[str, dict[str, int]]:
    return {"a": {"../../../a": 1}}


def forged_manifest(_where: Namespace, bundle: str) -> Manifest:
    return Manifest(bundle, SHA, 1, 1.0, "user-1", "numba", "ns", PRODUCER, {}, {"a": {"../a": File(1, SHA, 1)}})


def forged_survey(_where: Namespace, _owner: str) -> list[Bundle]:
    return [Bundle("..", "numba", "ns", BUNDLE, SHA, 1, 1, "a", 1.0, 1, 1)]
