"""`warmstart images`: list, show, import, adopt, verify, pin and evict images in the image store."""

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
OWNER = "people"  # of pins and of verifications, in place of a run
COLUMNS = ("image", "reference", "size", "importer", "last use (UTC)", "nodes", "kept", "private")
QUARANTINE_COLUMNS = ("name", "reference", "size", "since (UTC)", "reason", "private")


class Verified(NamedTuple):
    """The result of verifying an image."""

    name: str
    problem: str  # "" if the image is intact
    how: str


def _common(command: Callable[..., None]) -> Callable[..., None]:
    """Pass the installation to a command, and add the option --json."""
    return json_option(click.pass_obj(command))


@click.group()
def images() -> None:
    """List, verify, import, pin and evict the images in the store."""


@images.command(name="list")
@click.option("--quarantined", is_flag=True, help="List the quarantined images, which are damaged, instead. For root.")
@_common
def list_images(installation: Installation, quarantined: bool, as_json: bool) -> None:
    """List all images, least recently used first; for root also those of private stores.

    Exit status: 0 listed; 2 wrong usage, or the store cannot be read.
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
@_common
def show(installation: Installation, image: str, as_json: bool) -> None:
    """Show everything known about one image, given by reference, digest, path, or the beginning of its name.

    Exit status: 0 shown; 1 there is no such image, or more than one; 2 wrong usage, or the store cannot be read.
    """
    with opened(installation) as store:
        found = store.find(image)._asdict()
    if as_json:
        show_json(found)
    else:
        rows = [(key, _shown(key, value)) for key, value in found.items() if value not in ("", -1)]
        show_table(("key", "value"), rows)


@images.command(name="import")
@click.argument("reference")
@_common
def import_image(installation: Installation, reference: str, as_json: bool) -> None:
    """Import an image into the store, unless it is there already, as a job's prolog does. For root.

    Exit status: 0 the image is in the store; 1 the import failed; 2 wrong usage.
    """
    _obtain(installation, reference, "importing", single_flight.obtain, as_json)


@images.command()
@click.argument("reference")
@_common
def adopt(installation: Installation, reference: str, as_json: bool) -> None:
    """Copy the image that another launcher left for REFERENCE in one of the policy's directories. For root.

    The image may be of any age, whereas jobs adopt only images no older than images.tag_ttl.

    Exit status: 0 the image is in the store; 1 no image may be adopted; 2 wrong usage.
    """
    _obtain(installation, reference, "adopting", producer.adopt_now, as_json)


@images.command()
@click.argument("image", nargs=-1)
@click.option("--again", is_flag=True, help="Also read images that have not changed since they were last read.")
@_common
def verify(installation: Installation, image: tuple[str, ...], again: bool, as_json: bool) -> None:
    """Read every byte of images (default: all) and compare it with what was published. For root.

    A damaged image is moved to the store's quarantine; the next job that needs it imports it again.

    Exit status: 0 all are intact; 1 at least one is damaged; 2 wrong usage.
    """
    with changed(installation) as store:
        chosen = [store.find(name) for name in image] or store.inventory()
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
    """Pin an image, so that it is never evicted. For root.

    Exit status: 0 pinned; 1 there is no such image; 2 wrong usage.
    """
    with changed(installation) as store:
        entry = store.find(image)
        store.images.at(entry.store).pin(entry.name, OWNER, after(LISTING_S))
        store.emit(events.IMAGE_PINNED, name=entry.name)
    say(f"{entry.name}: pinned")


@images.command()
@click.argument("image")
@click.pass_obj
def unpin(installation: Installation, image: str) -> None:
    """Unpin an image, so that it can be evicted again. For root.

    Exit status: 0 unpinned; 1 there is no such image, or it was not pinned; 2 wrong usage.
    """
    with changed(installation) as store:
        entry = store.find(image)
        done = store.images.at(entry.store).unpin(entry.name, after(LISTING_S))
        if done:
            store.emit(events.IMAGE_UNPINNED, name=entry.name)
    say(f"{entry.name}: {'unpinned' if done else 'was not pinned'}")
    if not done:
        raise click.exceptions.Exit(NOT_DONE)


@images.command()
@click.argument("image", nargs=-1)
@click.option("--force", is_flag=True, help="Also evict images that are pinned, or that a running job may use.")
@_common
def evict(installation: Installation, image: tuple[str, ...], force: bool, as_json: bool) -> None:
    """Evict images; without a name, the least recently used ones, down to the policy's watermarks. For root.

    Exit status: 0 done; 1 a named image is protected, or there is still too little room; 2 wrong usage.
    """
    with changed(installation) as store:
        rules = store.policy.images
        if not image:
            gone, protected = store.images.make_room(0, rules, NOBODY, after(LISTING_S)), list[str]()
        else:
            chosen = [store.find(name) for name in image]
            done = [
                entry
                for entry in chosen
                if store.images.at(entry.store).evict(entry.name, rules, after(LISTING_S), forced=force)
            ]
            gone = [entry.name for entry in done]
            protected = [entry.name for entry in chosen if entry not in done]
        for name in gone:
            store.emit(events.IMAGE_EVICTED, name=name, reason="warmstart images evict")
    if as_json:
        show_json({"evicted": gone, "kept": protected})
    else:
        rows = [*((name, "evicted") for name in gone), *((name, "protected") for name in protected)]
        show_table(("image", "result"), rows)
    if protected:
        raise click.exceptions.Exit(NOT_DONE)


@contextmanager
def _errors_shown(as_json: bool) -> Iterator[None]:
    """Print an error of an import and exit with status 1."""
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
        store.emit(events.IMAGE_QUARANTINED, image=name, digest="", reason=found.problem)
        return Verified(name, found.problem, "quarantined")
    return Verified(name, "", "intact, unchanged since it was last read" if found.remembered else "intact")


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
