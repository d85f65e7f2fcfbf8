"""The store's operations that tests/faults/test_interleavings.py runs in pairs, and what readers see of them."""

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
from tests.lib.pairs import ME, TEMPLATE, Group, Known, Operation, State, memory
from warmstart.host.deadline import after
from warmstart.images.squashfs import ImageInvalid
from warmstart.images.store import eviction, published, uses
from warmstart.images.store import layout as image_layout
from warmstart.images.store.layout import NOBODY
from warmstart.images.store.published import ImageDraft, ImageProducer
from warmstart.policy.keys import Keep
from warmstart.repack import parts as repack_parts
from warmstart.repack import rewrite
from warmstart.store import board, bundles, index, maintenance, parts
from warmstart.store.board import Topic, Whose
from warmstart.store.bundles import Offer
from warmstart.store.client import StoreClient
from warmstart.store.layout import Namespace
from warmstart.store.manifest import Base, Draft, Entries, File, Producer, content_digest
from warmstart.store.parts import RunParts

SCOPE, NODES = "user-1-a", "n[1-2]"


def version(text: str) -> dict[str, File]:
    """Return the files of an entry that has this version."""
    return {f"{text.partition('=')[0]}.nbi": File(len(text), hashlib.sha256(text.encode()).hexdigest(), 17)}


def where(store: str, scope: str = SCOPE) -> Namespace:
    """Return the namespace that operations are about."""
    return Namespace(store, scope, "numba", "ns")


def draft(versions: Mapping[str, str], based_on: Mapping[str, str] | None = None, node: str = "n1") -> Draft:
    """Return a draft of entries with these versions; `based_on` is what the job was seeded with."""
    made = Draft(
        Producer(7, "a", 1, node, "c"),
        {"cpu": "x"},
        {entry: version(f"{entry}={text}") for entry, text in versions.items()},
    )
    bases = {entry: Base(SCOPE, content_digest(version(f"{entry}={text}"))) for entry, text in (based_on or {}).items()}
    return made._replace(based_on=bases)


def publish(store: StoreClient, versions: Mapping[str, str], based_on: Mapping[str, str] | None = None) -> str | None:
    """Publish a bundle."""
    fd = memory(json.dumps(versions).encode())
    try:
        return store.publish(where(store.path), fd, draft(versions, based_on), after(60)).bundle
    finally:
        os.close(fd)


def read(store: StoreClient, known: Known | None = None) -> dict[str, str]:
    """Look up and fetch as a prolog does; return each entry's version. One whose bundle is gone is missing.

    `known` are bundles that need not be fetched again, by their files.
    """
    versions: dict[str, str] = {}
    for offer in store.offers([SCOPE, "site"], "numba", "ns", after(60)).offers:
        place = where(store.path, offer.scope)
        try:
            files = [os.stat(f"{place.path}/{offer.bundle}.{ending}") for ending in ("json", "sqsh")]
            key = [(file.st_ino, file.st_mtime_ns) for file in files]
            content = (known or {}).get(str(key)) or fetched(store, place, offer)
        except (bundles.BundleGone, FileNotFoundError):
            continue
        if known is not None:
            known[str(key)] = content
        for entry in offer.entries:
            assert entry not in versions, f"{entry} is offered twice"
            versions[entry] = content[entry]
    return versions


def versions_of(content: dict[str, str]) -> Entries:
    """Return the entries of a bundle with these versions."""
    return {entry: version(f"{entry}={text}") for entry, text in content.items()}


def fetched(store: StoreClient, place: Namespace, offer: Offer) -> dict[str, str]:
    """Fetch a bundle, which is whole; return its entries' versions."""
    fd = os.memfd_create("copy")
    try:
        files = store.fetch(place, offer, after(60), into=fd)
        content: dict[str, str] = json.loads(os.pread(fd, offer.size, 0))
    finally:
        os.close(fd)
    assert files == versions_of(content)
    return content


# Operations on bundles. The template below has what they are about.


def compact(store: StoreClient, scope: str = SCOPE) -> None:
    """Merge all bundles of each user."""
    place = where(store.path, scope)
    for merger in store.run_in(after(60), maintenance.plan_compaction, place, 2, 1 << 30):
        rewrite.compact(settings(store), place, merger, after(60))


def settings(store: StoreClient) -> rewrite.RepackSettings:
    """Return what `repack` needs; it unpacks and packs nothing here."""
    return rewrite.RepackSettings("", store, ME)


def maintain(store: StoreClient, scope: str = SCOPE) -> None:
    """Do in a namespace what `maintenance.store` does, in its order; twice, as within an hour."""
    place = where(store.path, scope)
    for _ in range(2):
        store.run_in(after(60), maintenance.sweep, place, time.time())
        replaced = store.run_in(after(60), maintenance.superseded, place, time.time())
        store.run_in(after(60), maintenance.remove, place, replaced)
        compact(store, scope)
    store.worker.run(after(60), maintenance.remove_empty, place, time.time())


def remove(*entries: str) -> Callable[[StoreClient], object]:
    """Return the removal of the bundle that has these entries and no other."""

    def act(store: StoreClient) -> object:
        surveyed = index.read(where(store.path).path, "").bundles
        names = [listed.bundle for listed in surveyed if listed.entries.keys() == {*entries}]
        return store.run_in(after(60), maintenance.remove, where(store.path), names)

    return act


def scrub(store: StoreClient) -> None:
    """Quarantine the bundle with b and c, as if it were damaged."""
    surveyed = index.read(where(store.path).path, "").bundles
    for listed in surveyed:
        if listed.entries.keys() == {"b", "c"}:
            store.run_in(after(60), maintenance.quarantine, where(store.path), listed.bundle)
            return


def promote(store: StoreClient) -> object:
    """Publish an entry in the scope of the site."""
    fd = memory(json.dumps({"p": "1"}).encode())
    try:
        return store.publish(where(store.path, "site"), fd, draft({"p": "1"}), after(60)).bundle
    finally:
        os.close(fd)


def make_bundles(store: StoreClient) -> None:
    """Publish what the operations are about."""
    fd = memory(json.dumps({"s": "1", "r": "0"}).encode())
    store.publish(where(store.path, "site"), fd, draft({"s": "1", "r": "0"}), after(60))
    os.close(fd)
    publish(store, {"a": "1", "b": "1"})
    publish(store, {"b": "x", "c": "1"})
    publish(store, {"a": "2"}, {"a": "1"})
    fd = memory(b"{}")
    stale = draft({}, {})._replace(based_on={"r": Base("site", content_digest(version("r=0")))})
    store.publish(where(store.path), fd, stale, after(60))
    os.close(fd)
    publish(store, {"d": "1", "f": "1"})
    publish(store, {"d": "2"}, {"d": "1"})


BUNDLES = {
    "publish": Operation(partial(publish, versions={"n": "1"})),
    "publish the same entry": Operation(partial(publish, versions={"n": "2", "m": "2"})),
    "publish again what was retired": Operation(partial(publish, versions={"r": "9"})),
    "supersede": Operation(partial(publish, versions={"c": "2"}, based_on={"c": "1"})),
    "supersede the same entry": Operation(partial(publish, versions={"c": "3"}, based_on={"c": "1"})),
    "retire": Operation(partial(publish, versions={}, based_on={"f": "1"})),
    "promote": Operation(promote),
    "compact": Operation(compact, merges=True),
    "scrub": Operation(scrub, removes=True),
    "evict": Operation(remove("a", "b"), removes=True),
    "delete a bundle": Operation(remove("a"), removes=True),
    "delete what superseded, and what it superseded": Operation(
        lambda store: store.run_in(after(60), maintenance.remove, where(store.path), holders(store, "d")),
        removes=True,
    ),
    "maintenance": Operation(maintain, merges=True),
    "reindex": Operation(lambda store: store.run_in(after(60), bundles.reindex, where(store.path))),
    "look up and fetch": Operation(read, reads=True),
}


def holders(store: StoreClient, entry: str) -> list[str]:
    """Return all bundles that have an entry."""
    return [listed.bundle for listed in index.read(where(store.path).path, "").bundles if entry in listed.entries]


def observe_bundles(store: StoreClient, known: Known) -> State:
    """Return what readers see now."""
    return read(store, known)


def settle_bundles(store: StoreClient) -> None:
    """Sweep, as the next maintenance does."""
    if os.path.isdir(where(store.path).path):
        store.run_in(after(60), maintenance.sweep, where(store.path), 0.0)


def tidy_bundles(store: StoreClient) -> None:
    """Maintain what operations are about, and the scope of the site."""
    for scope in (SCOPE, "site"):
        if os.path.isdir(where(store.path, scope).path):
            maintain(store, scope)


def make_empty(store: StoreClient) -> None:
    """Make a namespace whose last bundle was removed."""
    made = publish(store, {"a": "1"})
    store.run_in(after(60), maintenance.remove, where(store.path), [str(made)])


EMPTIED = {
    "publish": BUNDLES["publish"],
    "remove an empty namespace": Operation(
        lambda store: store.worker.run(after(60), maintenance.remove_empty, where(store.path), time.time()),
    ),
    "look up and fetch": BUNDLES["look up and fetch"],
}


# What the nodes of a job hand in: nothing yet of run 7; of run 8 the first node has handed in.

EMPTY, HALF = "1.c.7.0", "1.c.8.0"


def hand_in(store: StoreClient, run: str, node: str, **versions: str) -> None:
    """Do what a node's epilog does: hand in, and say that nothing more comes."""
    place = RunParts(store.path, run)
    fd = memory(json.dumps(versions).encode())
    try:
        store.hand_in(place, where(store.path), fd, draft(versions, node=node), NODES, after(60))
    finally:
        os.close(fd)
    store.run_in(after(60), parts.finish, place, node, NODES)


def finish(store: StoreClient, run: str, node: str) -> None:
    """Say that nothing comes from a node."""
    store.run_in(after(60), parts.finish, RunParts(store.path, run), node, NODES)


def merge_parts(store: StoreClient) -> None:
    """Do what `entry.background` does with a run, in its order."""
    place = RunParts(store.path, HALF)
    with store.locked_parts(place, after(60)) as is_ours:
        listing = store.parts(place, after(60)) if is_ours else None
        if listing is None:
            return
        for group in repack_parts.by_namespace(listing).values():
            repack_parts.merge(settings(store), place, group, after(60), head="n1")
            store.worker.run(after(60), parts.remove, place, [part.bundle for part in group])
        store.worker.run(after(60), parts.remove, place, [])


def look_at_parts(store: StoreClient) -> None:
    """Ask what there is, as epilogs and maintenance do."""
    for run in (EMPTY, HALF):
        store.worker.run(after(60), parts.entries, RunParts(store.path, run), where(store.path))
    store.run(after(60), parts.due, 0.0)


def make_parts(store: StoreClient) -> None:
    """Let the first node hand in."""
    hand_in(store, HALF, "n1", w="1")


def observe_parts(store: StoreClient, known: Known) -> State:
    """Return what is published or waits to be, and directories in which nothing waits."""
    state = {}
    for run in (EMPTY, HALF):
        listing = store.parts(RunParts(store.path, run), after(60))
        for part in listing.parts if listing else []:
            entries = store.part(RunParts(store.path, run), part.bundle, after(60)).manifest.entries
            state.update(dict.fromkeys(entries, "waits"))
        if listing and not listing.parts and not listing.standing.missing:
            state[f"directory of {run}"] = "is left"
    return {**state, **dict.fromkeys(read(store, known), "is published")}


PARTS = {
    "hand in from the first node": Operation(partial(hand_in, run=EMPTY, node="n1", x="1")),
    "hand in from the second node": Operation(partial(hand_in, run=EMPTY, node="n2", x="2", y="2")),
    "nothing from the first node": Operation(partial(finish, run=EMPTY, node="n1")),
    "nothing from the second node": Operation(partial(finish, run=EMPTY, node="n2")),
    "hand in from a late node": Operation(partial(hand_in, run=HALF, node="n2", z="2")),
    "nothing from a late node": Operation(partial(finish, run=HALF, node="n2")),
    "merge parts": Operation(merge_parts),
    "look at parts": Operation(look_at_parts),
}


# What a job's nodes agree on. The head node has told its images.

OWN, OTHER = Whose(1, "c", NODES), Whose(2, "c", "n1")


def topic(store: StoreClient, whose: Whose = OWN) -> Topic:
    """Return what the nodes speak about."""
    return Topic("c.7.0", "caches", store.writer, whose)


def propose(store: StoreClient, profile: str, whose: Whose = OWN) -> State:
    """Propose a profile, as a head node's prolog does; return what holds."""
    return {f"proposal for {whose.uid}": store.run(after(60), board.begin, topic(store, whose), "proposal", profile)}


def choose(store: StoreClient, reason: str) -> State:
    """Choose, as a head node's prolog does; return what holds."""
    return {"choice": store.run(after(60), board.say, topic(store), "choice", reason)}


def observe_agreement(store: StoreClient, _known: Known) -> State:
    """Return what nodes of the job read, or those of another one with its id, if it has begun: the first is over."""
    for whose in (OTHER, OWN):
        if found := store.look(after(60), board.hear, topic(store, whose), ["proposal"], []):
            break
    state = {f"proposal for {whose.uid}": text for text in found.values()}
    if whose == OWN:
        state.update(store.look(after(60), board.hear, topic(store), ["choice", "vote."], []))
    return state


AGREEMENTS = {
    "propose": Operation(partial(propose, profile="a"), holds=True),
    "propose in a second prolog": Operation(partial(propose, profile="b"), holds=True),
    "vote": Operation(lambda store: store.run(after(60), board.say, topic(store), "vote.n2", "given")),
    "choose": Operation(partial(choose, reason="a"), holds=True),
    "choose in a second prolog": Operation(partial(choose, reason="b"), holds=True),
    "withdraw": Operation(lambda store: store.run(after(60), board.take_down, topic(store).path), removes=True),
    "another job with that id": Operation(partial(propose, profile="c", whose=OTHER), removes=True),
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
    "bundles": Group(make_bundles, BUNDLES, observe_bundles, settle_bundles, tidy_bundles),
    "empty namespaces": Group(make_empty, EMPTIED, observe_bundles, settle_bundles, tidy_bundles),
    "parts": Group(make_parts, PARTS, observe_parts, settle_bundles, tidy_bundles),
    "agreements": Group(
        lambda store: store.run(after(60), board.begin, topic(store)._replace(name="images"), "word", "x"),
        AGREEMENTS,
        observe_agreement,
        nothing,
        nothing,
    ),
    "images": Group(make_images, IMAGES, observe_images, settle_images, tidy_images, may_return=True),
}
