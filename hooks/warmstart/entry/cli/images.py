"""`warmstart images`: what the image store has, and the few things that people do to it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime, timezone
from typing import NamedTuple

import click

from warmstart.audit import events
from warmstart.entry.cli.image_store import LISTING_S, NOT_DONE, Store, changed, opened
from warmstart.entry.cli.output import json_option, progress, say, show_json, show_table, warn, working
from warmstart.errors import WarmstartError
from warmstart.host.deadline import Deadline, after
from warmstart.images import producer, single_flight
from warmstart.images.eviction import ImageEntry, QuarantinedImage
from warmstart.images.layout import NOBODY
from warmstart.images.producer import format_size
from warmstart.images.query import Obtained, Site
from warmstart.images.reference import Reference
from warmstart.paths import Installation
from warmstart.steps.image import tell

IMPORT_S = 6 * 3600.0
HASHING_S = 6 * 3600.0
OWNER = "people"
COLUMNS = ("image", "reference", "size", "importer", "last use (UTC)", "nodes", "kept", "private")
QUARANTINE_COLUMNS = ("name", "reference", "size", "since (UTC)", "reason", "private")


class Verified(NamedTuple):
    """The result of reading an image."""

    name: str
    problem: str  # "" for a whole image
    how: str


def _shared(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the installation, and the option --json."""
    return json_option(click.pass_obj(command))


@click.group()
def images() -> None:
    """Show and keep the image store: list, verify, import, pin, evict."""


@images.command(name="list")
@click.option("--quarantined", is_flag=True, help="Show the damaged images, which are quarantined, instead. For root.")
@_shared
def list_images(installation: Installation, quarantined: bool, as_json: bool) -> None:
    """List all images, the one that was used least recently first; for root those of private stores, too.

    Exit status: 0; 2 wrong usage, or the store cannot be read.
    """
    with opened(installation) as store:
        damaged = store.quarantined() if quarantined else []
        images = [] if quarantined else store.inventory()
    found: list[ImageEntry | QuarantinedImage] = [*damaged, *images]
    if as_json:
        show_json([entry._asdict() for entry in found])
        return
    if quarantined:
        show_table(QUARANTINE_COLUMNS, map(_quarantined, damaged))
    else:
        show_table(COLUMNS, map(_row, images))
    say(f"{len(found)} images, {format_size(sum(entry.bytes for entry in found))}")


@images.command()
@click.argument("image")
@_shared
def show(installation: Installation, image: str, as_json: bool) -> None:
    """Show all that is known of one image: a reference, a digest, its path, or the beginning of its name.

    Exit status: 0; 1 there is none, or more than one; 2 wrong usage, or the store cannot be read.
    """
    with opened(installation) as store:
        found = store.the(image)._asdict()
    if as_json:
        show_json(found)
    else:
        rows = [(key, _shown(key, value)) for key, value in found.items() if value not in ("", -1)]
        show_table(("key", "value"), rows)


@images.command(name="import")
@click.argument("reference")
@_shared
def import_image(installation: Installation, reference: str, as_json: bool) -> None:
    """Have an image in the store, importing it if it is not there; as a job's prolog does. For root.

    Exit status: 0 it is there; 1 it cannot be had; 2 wrong usage.
    """
    _obtain(installation, reference, "importing", single_flight.obtain, as_json)


@images.command()
@click.argument("reference")
@_shared
def adopt(installation: Installation, reference: str, as_json: bool) -> None:
    """Take over the image that another launcher left for REFERENCE in one of the policy's directories. For root.

    However old it is; jobs take over only what is no older than images.tag_ttl.

    Exit status: 0 it is in the store; 1 there is nothing that may be taken; 2 wrong usage.
    """
    _obtain(installation, reference, "adopting", producer.adopt_now, as_json)


@images.command()
@click.argument("image", nargs=-1)
@click.option("--again", is_flag=True, help="Read also what has not changed since it was last read.")
@_shared
def verify(installation: Installation, image: tuple[str, ...], again: bool, as_json: bool) -> None:
    """Read every byte of images (default: all) and compare with what was published. For root.

    A damaged image is moved to the store's quarantine; the next job that wants it imports it again.

    Exit status: 0 all are whole; 1 at least one was not; 2 wrong usage.
    """
    with changed(installation) as store:
        chosen = [store.the(name) for name in image] or store.inventory()
        results = [_verify(store, entry, again) for entry in progress(chosen, "reading", quiet=as_json)]
    if as_json:
        show_json([row._asdict() for row in results])
    else:
        show_table(("image", "result"), [(row.name, row.problem or row.how) for row in results])
    if any(row.problem for row in results):
        raise click.exceptions.Exit(NOT_DONE)


@images.command()
@click.argument("image")
@click.pass_obj
def pin(installation: Installation, image: str) -> None:
    """Keep an image whatever happens. For root.

    Exit status: 0; 1 there is no such image; 2 wrong usage.
    """
    with changed(installation) as store:
        entry = store.the(image)
        store.images.at(entry.store).pin(entry.name, OWNER, after(LISTING_S))
        store.tell(events.IMAGE_PINNED, name=entry.name)
    say(f"{entry.name}: pinned")


@images.command()
@click.argument("image")
@click.pass_obj
def unpin(installation: Installation, image: str) -> None:
    """Let a pinned image go when its time comes. For root.

    Exit status: 0; 1 there is no such image, or it was not pinned; 2 wrong usage.
    """
    with changed(installation) as store:
        entry = store.the(image)
        done = store.images.at(entry.store).unpin(entry.name, after(LISTING_S))
        if done:
            store.tell(events.IMAGE_UNPINNED, name=entry.name)
    say(f"{entry.name}: {'not pinned any more' if done else 'was not pinned'}")
    if not done:
        raise click.exceptions.Exit(NOT_DONE)


@images.command()
@click.argument("image", nargs=-1)
@click.option("--force", is_flag=True, help="Also what is pinned, or may be used by a live job.")
@_shared
def evict(installation: Installation, image: tuple[str, ...], force: bool, as_json: bool) -> None:
    """Remove images; without a name, what the policy's watermarks say has to go now. For root.

    Exit status: 0; 1 at least one that was named is protected, or there is too little room; 2 wrong usage.
    """
    with changed(installation) as store:
        rules = store.policy.images
        if not image:
            gone, protected = store.images.make_room(0, rules, NOBODY, after(LISTING_S)), list[str]()
        else:
            chosen = [store.the(name) for name in image]
            done = [
                entry
                for entry in chosen
                if store.images.at(entry.store).evict(entry.name, rules, after(LISTING_S), forced=force)
            ]
            gone = [entry.name for entry in done]
            protected = [entry.name for entry in chosen if entry not in done]
        for name in gone:
            store.tell(events.IMAGE_EVICTED, name=name, reason="warmstart images evict")
    if as_json:
        show_json({"evicted": gone, "kept": protected})
    else:
        rows = [*((name, "evicted") for name in gone), *((name, "protected") for name in protected)]
        show_table(("image", "result"), rows)
    if protected:
        raise click.exceptions.Exit(NOT_DONE)


@contextmanager
def _errors_shown(as_json: bool) -> Iterator[None]:
    """Show an error of an import, and exit with status 1."""
    try:
        yield
    except WarmstartError as error:
        if as_json:
            show_json({"error": error.as_audit()})
        else:
            warn(str(error))
            warn(error.hint)
        raise click.exceptions.Exit(NOT_DONE) from None


def _obtain(
    installation: Installation,
    text: str,
    doing: str,
    function: Callable[[Reference, Site, Deadline], Obtained],
    as_json: bool,
) -> None:
    with changed(installation) as store, _errors_shown(as_json):
        reference = store.reference(text)
        with working(f"{doing} {reference.canonical()}"):
            started = time.monotonic()
            image = function(reference, store.site(), after(IMPORT_S))
            assert store.audit is not None
            tell(store.audit, reference.canonical(), image, time.monotonic() - started)
    if as_json:
        show_json({"digest": image.digest, "path": image.path, "bytes": image.size, "how": image.how})
    else:
        say(f"{image.how}: {image.path}")


def _verify(store: Store, entry: ImageEntry, again: bool) -> Verified:
    images, name = store.images.at(entry.store), entry.name
    found = images.check_bytes(name, OWNER, after(HASHING_S), again=again)
    if found.problem:
        images.quarantine(name, found.problem, after(LISTING_S), inode=found.inode)
        store.tell(events.IMAGE_QUARANTINED, image=name, digest="", reason=found.problem)
        return Verified(name, found.problem, "quarantined")
    return Verified(name, "", "whole, as it was when it was last read" if found.remembered else "whole")


def _row(entry: ImageEntry) -> tuple[object, ...]:
    name = entry.name.partition(".")[0]
    short = f"{name[:20]}…" if len(name) > 20 else name
    nodes = len(entry.nodes) or None
    return (
        short,
        entry.reference,
        format_size(entry.bytes),
        entry.importer,
        _time(entry.last_use),
        nodes,
        entry.protected,
        entry.private,
    )


def _quarantined(entry: QuarantinedImage) -> tuple[object, ...]:
    return (entry.name, entry.reference, format_size(entry.bytes), _time(entry.at), entry.reason, entry.private)


def _shown(key: str, value: object) -> object:
    if key in ("published", "last_use") and isinstance(value, float):
        return _time(value)
    return ", ".join(value) if isinstance(value, list) else value


def _time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, timezone.utc).strftime("%Y-%m-%d %H:%M")
