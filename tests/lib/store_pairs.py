"""The store's operations that tests/faults/test_orders.py runs in pairs, and what readers see of them."""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path

from tests.lib import superblocks
from tests.lib.pairs import TEMPLATE, Group, Known, Operation, State, memory
from warmstart.caches.store import bundles, client, ending, gc, generations
from warmstart.caches.store.bundles import BundleGone, Draft
from warmstart.caches.store.ending import Run
from warmstart.caches.store.gc import What
from warmstart.caches.store.layout import Entries, File, Namespace, content_digest
from warmstart.caches.store.look import Layer, Want
from warmstart.caches.store.merge import Removal
from warmstart.host.deadline import after
from warmstart.images.squashfs import ImageInvalid
from warmstart.images.store import eviction, published, uses
from warmstart.images.store import layout as image_layout
from warmstart.images.store.layout import NOBODY
from warmstart.images.store.published import ImageDraft, ImageProducer
from warmstart.maintenance import repack
from warmstart.policy.keys import Keep
from warmstart.seed import layers
from warmstart.store import barrier
from warmstart.store.barrier import Topic
from warmstart.store.client import StoreClient

SCOPE, SITE = "user-1-a", "site"
FIRST = {"a": "1"}  # a bundle whose place another one has


def version(text: str) -> dict[str, File]:
    """Return the files of an entry that has this version."""
    return {f"{text.partition('=')[0]}.nbi": File(len(text), hashlib.sha256(text.encode()).hexdigest(), 17)}


def versions_of(content: Mapping[str, str]) -> Entries:
    """Return the entries of a bundle with these versions."""
    return {entry: version(f"{entry}={text}") for entry, text in content.items()}


def where(store: str, scope: str = SCOPE) -> Namespace:
    """Return the namespace that operations are about."""
    return Namespace(store, scope, "numba", "ns")


def draft(versions: Mapping[str, str], user: str = "a") -> Draft:
    """Return what a job publishes that made entries with these versions."""
    return Draft(user, 1, 7, versions_of(versions), facts={"cpu": "x"})


def publish(store: StoreClient, versions: Mapping[str, str], *changed: str, scope: str = SCOPE) -> str:
    """Publish a bundle, some of whose entries the job was given, and changed. Return its hash."""
    fd = memory(json.dumps(versions).encode())
    try:
        made = draft(versions)._replace(changed=[*changed])
        return client.publish(store, where(store.path, scope), fd, made, after(60), quota=0).sha256
    finally:
        os.close(fd)


def remove(store: StoreClient, *, hide: str = "", entry: str = "") -> None:
    """Publish that a job removed the first version of an entry, which it was given; or one of a wider scope."""
    place = where(store.path)
    given = {entry: content_digest(version(f"{entry}=1"))} if entry else {}
    made = draft({})._replace(removal=Removal(given, [hide] if hide else []))
    client.publish(store, place, None, made, after(60), quota=0)


def read(store: StoreClient, known: Known | None = None) -> dict[str, str]:
    """Look up and fetch as a prolog does; return each entry's version. One whose bundle is gone is missing.

    `known` are bundles that need not be fetched again, by their files.
    """
    found = client.listings(store, [SITE, SCOPE], [Want("numba", "ns")], after(60))[0]
    assert not found.failed, found.failed
    content = [content_of(store, layer, known) for layer in found.layers]
    files = [versions_of(each) for each in content]
    if found.is_named:
        pairs = zip(found.layers, content, strict=True)
        names = [[entry for entry in layer.names if entry in each] for layer, each in pairs]
        given = layers.visible(files, names).entries
    else:
        given = layers.given(files, found.hidden)
    versions: dict[str, str] = {}
    for each, entries in zip(content, given, strict=True):
        for entry in entries:
            assert entry not in versions, f"{entry} is given twice"
            versions[entry] = each[entry]
    return versions


def content_of(store: StoreClient, layer: Layer, known: Known | None) -> dict[str, str]:
    """Return the versions of a bundle's entries; {} if it is gone."""
    place = where(store.path, layer.scope)
    try:
        files = [os.stat(f"{place.path}/{layer.row.sha256}.{suffix}") for suffix in ("json", "sqsh")]
        key = str([(file.st_ino, file.st_mtime_ns) for file in files])
        if known is not None and key in known:
            return known[key]
        content = fetched(store, place, layer)
    except (BundleGone, FileNotFoundError):
        return {}
    if known is not None:
        known[key] = content
    return content


def fetched(store: StoreClient, place: Namespace, layer: Layer) -> dict[str, str]:
    """Fetch a bundle, which is whole; return its entries' versions."""
    fd = os.memfd_create("copy")
    try:
        files = client.fetch(store, place, layer.row, after(60), into=fd)
        content: dict[str, str] = json.loads(os.pread(fd, layer.row.size, 0))
    finally:
        os.close(fd)
    assert files == versions_of(content)
    return content


# Operations on bundles. The template below has what they are about.


def compact(store: StoreClient, scope: str = SCOPE) -> None:
    """Make one bundle of all of each user's."""
    place = where(store.path, scope)
    for merger in store.worker.run(after(60), gc.plan, place, 2):
        with suppress(BundleGone):  # removed meanwhile
            repack.compact(FakeSession(store), place, merger, after(60))  # type: ignore[arg-type]


class FakeSession:
    """What `repack` asks a session for."""

    def __init__(self, store: StoreClient) -> None:
        self.store = store


def maintain(store: StoreClient, scope: str = SCOPE) -> None:
    """Do in a namespace what `maintenance.store` does, in its order; twice, as within an hour."""
    place = where(store.path, scope)
    for _ in range(2):
        if not os.path.isdir(place.path):
            return
        compact(store, scope)
        store.worker.run(after(60), bundles.sweep, place, time.time())
        store.worker.run(after(60), bundles.remove_empty, place, time.time() - gc.DAY, 0.0)


def take_out(what: Callable[[StoreClient], What]) -> Callable[[StoreClient], object]:
    """Return what takes something from readers, as `cache rm` and expiry do."""
    return lambda store: store.worker.run(after(60), gc.take_out, where(store.path), store.writer, what(store))


def holder(store: StoreClient, entry: str) -> What:
    """Return the bundle that readers take an entry from."""
    listing = generations.read(where(store.path))
    rows = zip(listing.rows, listing.names, strict=True)
    return What([row.sha256 for row, names in rows if entry in names])


def make_bundles(store: StoreClient) -> None:
    """Publish what the operations are about."""
    publish(store, {"s": "1", "r": "0"}, scope=SITE)
    publish(store, FIRST)
    publish(store, {"b": "x", "c": "1"})
    publish(store, {"a": "2", "e": "1"})
    remove(store, hide="r")
    publish(store, {"d": "1", "f": "1"})
    publish(store, {"d": "2"}, "d")


BUNDLES = {
    "publish": Operation(partial(publish, versions={"n": "1"})),
    "publish the same entry": Operation(partial(publish, versions={"n": "2", "m": "2"})),
    "publish again what was hidden": Operation(partial(publish, versions={"r": "9"})),
    "publish a bundle again that is old": Operation(lambda store: publish(store, FIRST, *FIRST)),
    "change an entry": Operation(lambda store: publish(store, {"c": "2"}, "c")),
    "change the same entry": Operation(lambda store: publish(store, {"c": "3"}, "c")),
    "remove an entry": Operation(partial(remove, entry="f")),
    "publish for the site": Operation(partial(publish, versions={"p": "1"}, scope=SITE)),
    "compact": Operation(compact, merges=True),
    "take out a bundle": Operation(take_out(partial(holder, entry="b")), removes=True),
    "take out an entry": Operation(take_out(lambda _: What(entries=["d"])), removes=True),
    "take out a user's": Operation(take_out(lambda _: What(users=["a"])), removes=True),
    "maintenance": Operation(maintain, merges=True),
    "look up and fetch": Operation(read, reads=True),
}


def observe_bundles(store: StoreClient, known: Known) -> State:
    """Return what readers see now."""
    return read(store, known)


def sweep(store: StoreClient) -> None:
    """Sweep, as the next maintenance does."""
    if os.path.isdir(where(store.path).path):
        store.worker.run(after(60), bundles.sweep, where(store.path), time.time())


def tidy_bundles(store: StoreClient) -> None:
    """Maintain what operations are about, and the scope of the site."""
    for scope in (SCOPE, SITE):
        maintain(store, scope)


def make_empty(store: StoreClient) -> None:
    """Make a namespace whose last bundle was removed."""
    made = publish(store, {"a": "1"})
    store.worker.run(after(60), gc.take_out, where(store.path), store.writer, What([made]))


EMPTIED = {
    "publish": BUNDLES["publish"],
    "publish for the site": BUNDLES["publish for the site"],
    "remove an empty namespace": Operation(
        lambda store: store.worker.run(after(60), bundles.remove_empty, where(store.path), time.time(), 0.0)
    ),
    "look up and fetch": BUNDLES["look up and fetch"],
}


# Ends of the nodes of a job: nothing yet of run 7; of run 8 the first node has ended.

EMPTY, HALF = "1.c.7.0", "1.c.8.0"


def end(store: StoreClient, run: str, node: str, **versions: str) -> None:
    """End a node's harvest as its epilog does."""
    place, ours = where(store.path), Run(store.path, run)
    if versions:
        fd = memory(json.dumps(versions).encode())
        try:
            row = client.put(store, place, fd, draft(versions), after(60), quota=0)
        finally:
            os.close(fd)
        args = (ours, store.writer, node, node == "n1", place, row, draft(versions))
        store.worker.run(after(60), ending.hand_in, *args)
    store.worker.run(after(60), ending.ended, ours, store.writer, node, 2)


def unite(store: StoreClient) -> None:
    """Publish what the first node has, as maintenance does an hour later."""
    store.run(after(60), ending.unite, store.writer, HALF, 0.0)  # whatever the clock of a test says, it is not too old


def observe_ends(store: StoreClient, known: Known) -> State:
    """Return what is published. Of an entry of several nodes it is the head's version, or that of who came alone."""
    return dict.fromkeys(read(store, known), "is published")


ENDINGS = {
    "the first node ends": Operation(partial(end, run=EMPTY, node="n1", x="1")),
    "the second node ends": Operation(partial(end, run=EMPTY, node="n2", x="2", y="2")),
    "the first node ends with nothing": Operation(partial(end, run=EMPTY, node="n1")),
    "the second node ends with nothing": Operation(partial(end, run=EMPTY, node="n2")),
    "a late node ends": Operation(partial(end, run=HALF, node="n2", z="2")),
    "a late node ends with nothing": Operation(partial(end, run=HALF, node="n2")),
    "a job publishes": BUNDLES["publish"],
    "unite what there is": Operation(unite),
}


# What a job's nodes say to each other. The head node has told its images.


def topic(store: StoreClient, key: str = "own") -> Topic:
    """Return what the nodes speak about."""
    return Topic("c.7.0", f"caches.{key}.", store.writer)


def propose(store: StoreClient, profile: str, key: str = "own") -> State:
    """Propose a profile, as a head node's prolog does; return what holds."""
    return {f"proposal of {key}": store.run(after(60), barrier.say, topic(store, key), "proposal", profile, True)}


def choose(store: StoreClient, reason: str) -> State:
    """Choose, as a head node's prolog does; return what holds."""
    return {"choice": store.run(after(60), barrier.say, topic(store), "choice", reason, False)}


def observe_agreement(store: StoreClient, _known: Known) -> State:
    """Return what nodes of the job read, or those of another one with its id, if it has begun: the first is over."""
    other = store.run(after(60), barrier.hear, topic(store, "other"), "proposal")
    if other is not None:
        return {"proposal of other": other}
    state = {}
    for name, said in (("proposal of own", "proposal"), ("choice", "choice")):
        if (text := store.run(after(60), barrier.hear, topic(store), said)) is not None:
            state[name] = text
    return {**state, **dict.fromkeys(store.run(after(60), barrier.marks, topic(store), "vote."), "is there")}


AGREEMENTS = {
    "propose": Operation(partial(propose, profile="a"), holds=True),
    "propose in a second prolog": Operation(partial(propose, profile="b"), holds=True),
    "vote": Operation(lambda store: store.run(after(60), barrier.mark, topic(store), "vote.n2.0.")),
    "choose": Operation(partial(choose, reason="a"), holds=True),
    "choose in a second prolog": Operation(partial(choose, reason="b"), holds=True),
    "withdraw": Operation(lambda store: store.run(after(60), barrier.take_down, "c.7.0/caches"), removes=True),
    "another job with that id": Operation(partial(propose, profile="c", key="other"), removes=True),
}


# Images. One is there that nobody uses, and a tag that means it.

OLD, NEW = ("sha256:" + letter * 64 for letter in "ab")
KIND, TAG, LEASE_S = "x86_64.oci1", "reg.example.com+app=1", 3600.0


def import_image(store: StoreClient, digest: str, size: int = superblocks.PADDED) -> object:
    """Do what `images.imports.making` does in the store, in its order."""
    name = image_layout.image_name(digest, KIND)
    published.begin(store.path, TAG, ImageProducer("n1", 1, 7, "now"), store.writer)
    try:
        published.sweep(store.path, TAG)
        found = image_layout.find(store.path, TAG, digest, KIND, 0.0)
        if found is not None and found.invalid:
            published.put_away(store.path, name)
        if found is None or found.invalid:
            fd = memory(superblocks.image(size=size))
            try:
                made = ImageDraft(digest, "reg/app:1", KIND, "oci", 1.0, "n1", 7, NOBODY)
                published.publish_image(store.path, fd, name, made, store.writer)
            finally:
                os.close(fd)
        if image_layout.find(store.path, TAG, digest, KIND, 0.0) is None:
            raise ImageInvalid(problem="it was published and is gone")
        published.point(store.path, TAG, digest, 1.0, store.writer)
    finally:
        published.end(store.path, TAG)
        published._held.clear()
    if not (used := use_image(store, digest)):
        raise ImageInvalid(problem="it was evicted meanwhile")
    return used


def use_image(store: StoreClient, digest: str = "") -> State:
    """Look an image up as `images.single_flight` does; return it if it is there."""
    found = image_layout.find(store.path, TAG, digest, KIND, 0.0)
    if found is None:
        return {}
    uses.record(store.path, found.name, store.writer)
    if image_layout.find(store.path, TAG, found.digest, KIND, 0.0) is None:
        return {}
    return {found.name: "is there"}


def evict_image(store: StoreClient) -> object:
    """Evict the image that nobody uses."""
    return eviction.evict(store.path, image_layout.image_name(OLD, KIND), LEASE_S)


def put_image_away(store: StoreClient) -> None:
    """Put away the image that was there, of which some bytes were found to be wrong."""
    name = image_layout.image_name(OLD, KIND)
    damaged = Path(store.path).with_name(TEMPLATE) / "images" / f"{name}.sqsh"
    published.put_away(store.path, name, damaged.stat().st_ino)


def replace_image(store: StoreClient) -> object:
    """Put the image away for its bytes, and import it anew."""
    put_image_away(store)
    return import_image(store, OLD, superblocks.PADDED + 1)


def check_image(store: StoreClient) -> None:
    """Compare the image's bytes with its hash; write that down if it is missing."""
    with suppress(FileNotFoundError):
        published.check_bytes(store.path, image_layout.image_name(OLD, KIND), store.writer)


def make_images(store: StoreClient) -> None:
    """Publish the image that operations are about."""
    import_image(store, OLD)
    name = image_layout.image_name(OLD, KIND)
    os.utime(f"{store.path}/images/{name}.sqsh", (1.0, 1.0))
    for folder in ("used", "leases"):
        for path in sorted(Path(store.path, "images", folder).rglob("*"), reverse=True):
            path.rmdir() if path.is_dir() else path.unlink()


def observe_images(store: StoreClient, _known: Known) -> State:
    """Return the images, whether they are whole and known, and what the tag means."""
    state = {}
    for path in Path(store.path, "images").glob("[!.]*.sqsh"):
        data = path.read_bytes()
        is_whole = len(data) in (superblocks.PADDED, superblocks.PADDED + 1)
        known = published.read_metadata(str(path.with_suffix(".json"))).get("sha256")
        is_own = known == hashlib.sha256(data).hexdigest()
        state[path.stem] = "is there" if is_whole else "is half"
        state[f"metadata of {path.stem}"] = "is there" if is_own else "is another's" if known else "is missing"
    pointer = published.last_pointer(store.path, TAG)
    return {**state, "tag": pointer.digest if pointer else ""}


IMAGES = {
    "elect and import": Operation(partial(import_image, digest=NEW), holds=True),
    "import again what is evicted": Operation(partial(import_image, digest=OLD), holds=True),
    "evict": Operation(evict_image),
    "make room": Operation(lambda store: eviction.make_room(store.path, 0, Keep(0, 0, int(LEASE_S)), NOBODY)),
    "look up and use": Operation(use_image, holds=True),
    "import with other bytes": Operation(partial(import_image, digest=NEW, size=superblocks.PADDED + 1), holds=True),
    "put away": Operation(put_image_away, removes=True),
    "put away and import again": Operation(replace_image, removes=True),
    "check": Operation(check_image),
}


def settle_images(store: StoreClient) -> None:
    """Write down what is missing, as the next maintenance does."""
    for name in published.unrecorded(store.path):
        published.check_bytes(store.path, name, "m")


def tidy_images(store: StoreClient) -> None:
    """Do what maintenance does with images of which none is too much."""
    published.sweep_all(store.path)
    published.forget_dead(store.path)
    eviction.make_room(store.path, 0, Keep(100, 100, int(LEASE_S)), NOBODY)
    settle_images(store)


def nothing(_store: StoreClient) -> None:
    """Do nothing."""


GROUPS = {
    "bundles": Group(make_bundles, BUNDLES, observe_bundles, sweep, tidy_bundles),
    "empty namespaces": Group(make_empty, EMPTIED, observe_bundles, sweep, tidy_bundles),
    "ends of a job": Group(lambda store: end(store, HALF, "n1", w="1"), ENDINGS, observe_ends, sweep, tidy_bundles),
    "agreements": Group(
        lambda store: store.run(after(60), barrier.say, Topic("c.7.0", "images.own.", store.writer), "word", "x", True),
        AGREEMENTS,
        observe_agreement,
        nothing,
        nothing,
    ),
    "images": Group(make_images, IMAGES, observe_images, settle_images, tidy_images, may_return=True),
}
