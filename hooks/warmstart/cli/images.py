"""`warmstart images`: list, show, import, verify, pin and evict images in the image store."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import click

from warmstart.audit import events
from warmstart.cli import LazyGroup
from warmstart.cli.image_store import LISTING_S, NOT_DONE, ImageStore, Import, canonical, changed, opened
from warmstart.cli.output import (
    Column,
    answer,
    bar,
    json_option,
    progress,
    rfc3339,
    say,
    show_fields,
    show_json,
    show_rows,
    show_table,
    size,
    text,
    warn,
)
from warmstart.errors import WarmstartError
from warmstart.host.deadline import after
from warmstart.images.imports import making, requests
from warmstart.images.query import query_by_rules
from warmstart.images.store import eviction, published
from warmstart.images.store.eviction import ImageEntry
from warmstart.paths import Installation
from warmstart.session import require_root
from warmstart.steps.image import tell

IMPORT_S = 6 * 3600.0
HASHING_S = 6 * 3600.0
WRITER = "people"  # of pins and of verifications, in place of a run
SHORT = 12  # characters of an id in a list; enough to name the image by


def _bytes(value: object) -> str:
    return size(value) if value else "-"


COLUMNS = (
    Column("id"),
    Column("bytes", size),
    Column("last_use", rfc3339),
    Column("protected"),
    Column("reference"),
)
IMPORT_COLUMNS = (
    Column("reference"),
    Column("node"),
    Column("job_id"),
    Column("since"),
    Column("done", _bytes),
    Column("phase"),
)


def _common(command: Callable[..., None]) -> Callable[..., None]:
    """Pass the installation to a command, and add the option --json."""
    return json_option(click.pass_obj(command))


@click.group(
    cls=LazyGroup,
    modules={name: f"warmstart.cli.unpacked:{name}" for name in ("unpacked", "unpack")},
)
def images() -> None:
    """List, verify, import, pin and evict the images in the store; list and make unpacked ones."""


@images.command(name="list")
@click.option("--imports", "importing", is_flag=True, help="List only the imports under way. For root.")
@json_option
@click.pass_obj
def list_images(installation: Installation, /, importing: bool, as_json: bool) -> None:
    """List all images, least recently used first; for root also those of private stores, and imports under way.

    Exit status: 0 listed; 2 wrong usage, or the store cannot be read.
    """
    with opened(installation) as store:
        if importing:
            require_root("images list --imports")
        coming = store.imports()
        if importing:
            show_rows(IMPORT_COLUMNS, [known._asdict() for known in coming], as_json=as_json)
            return
        listed = store.inventory()
    columns = (*COLUMNS, Column("private")) if any(entry.private for entry in listed) else COLUMNS
    rows = [entry._asdict() for entry in listed]
    if not as_json:
        rows = [{**row, "id": str(row["name"])[:SHORT]} for row in rows]
    if rows or as_json:
        show_rows(columns, rows, as_json=as_json)
    if not as_json:
        _show_imports(coming)
        warn(f"{len(listed)} images, {size(sum(entry.bytes for entry in listed))}")


@images.command()
@click.argument("image")
@_common
def show(installation: Installation, image: str, as_json: bool) -> None:
    """Show everything known about one image, given by reference, digest, path, or the beginning of its name.

    For root also its import, if that is under way.

    Exit status: 0 shown; 1 there is no such image, or more than one; 2 wrong usage, or the store cannot be read.
    """
    with opened(installation) as store:
        coming = [known for known in store.imports() if known.reference == canonical(image)]
        fields = dict[str, object]() if coming and not store.has(image) else store.find(image)._asdict()
    if as_json:
        show_json(fields | {"imports": [known._asdict() for known in coming]} if coming else fields)
    else:
        _show_imports(coming)
        shown = {column.name: column.show for column in COLUMNS}
        show_fields((key, shown.get(key, text)(value)) for key, value in fields.items() if value not in ("", -1))


@images.command(name="import")
@click.argument("reference")
@click.option("--refresh", is_flag=True, help="Ask the registry what a tag means now.")
@_common
def import_image(installation: Installation, reference: str, refresh: bool, as_json: bool) -> None:
    """Import an image into the store, unless it is there already, as a job's prolog does. For root.

    Jobs that start from then on get it; those that run keep the image that they have.

    Exit status: 0 the image is in the store; 1 the import failed, or the registry does not answer; 2 wrong usage.
    """
    with changed(installation) as store, _errors_shown(as_json):
        wanted, site = store.reference(reference), store.site()
        if refresh:
            site = site._replace(rules=site.rules._replace(tag_ttl=0))
        with bar(f"importing {wanted.canonical()}", quiet=as_json) as show_bytes:
            site = site._replace(watch=lambda now: show_bytes(now.phase, now.done))
            started = time.monotonic()
            image = making.obtain(wanted, site, after(IMPORT_S))
            assert store.audit is not None
            tell(store.audit, wanted.canonical(), image, time.monotonic() - started)
            if not image.reason:
                query = query_by_rules(wanted, site.rules, site.recipe)
                with suppress(OSError):  # then doctor warns of it for an hour
                    requests.forget_failure(site.paths, requests.ImportRequest.of(query, site).image)
    made = {"digest": image.digest, "path": image.path, "bytes": image.size, "how": image.how}
    answer(f"{image.how}: {image.path}", made, as_json=as_json)
    if image.reason:
        warn(f"it is what the tag meant last, and may be out of date: {image.reason}")
    if refresh and image.how == "stale":
        raise click.exceptions.Exit(NOT_DONE)


@images.command()
@click.argument("reference")
@click.pass_obj
def cancel(installation: Installation, reference: str) -> None:
    """Cancel the background import of an image on this host. Jobs that wait for it fail. For root.

    Exit status: 0 cancelled; 1 none is under way here; 2 wrong usage.
    """
    with changed(installation) as store:
        wanted = store.reference(reference).canonical()
        if not store.cancel(wanted):
            elsewhere = {known.node for known in store.imports() if known.reference == wanted}
            where = f"it is imported by {', '.join(sorted(elsewhere))}: cancel it there" if elsewhere else "nobody does"
            warn(f"{wanted} is not imported in the background on this host; {where}")
            raise click.exceptions.Exit(NOT_DONE)
        store.emit(events.IMAGE_IMPORT_CANCELLED, image=wanted)
    say(f"{wanted}: cancelled")


@images.command()
@click.argument("image", nargs=-1)
@_common
def verify(installation: Installation, image: tuple[str, ...], as_json: bool) -> None:
    """Read every byte of images (default: all) and compare it with what was published. For root.

    The next job that needs a damaged image imports it again.

    Exit status: 0 all are intact; 1 at least one is damaged; 2 wrong usage.
    """
    with changed(installation) as store:
        chosen = [store.find(name) for name in image] or store.inventory()
        results = [_verify(store, entry) for entry in progress(chosen, "reading", quiet=as_json)]
    if as_json:
        show_json(results)
    else:
        show_table(("image", "result"), [(row["name"], row["problem"] or row["how"]) for row in results])
    if any(row["problem"] for row in results):
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
        store.images.at(entry.store).run(after(LISTING_S), eviction.pin, entry.name, WRITER)
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
        done = store.images.at(entry.store).run(after(LISTING_S), eviction.unpin, entry.name)
        if done:
            store.emit(events.IMAGE_UNPINNED, name=entry.name)
    say(f"{entry.name}: {'unpinned' if done else 'was not pinned'}")
    if not done:
        raise click.exceptions.Exit(NOT_DONE)


@images.command("rm")
@click.argument("image", nargs=-1, required=True)
@click.option("--force", is_flag=True, help="Also remove images that are pinned, or that a running job may use.")
@_common
def remove(installation: Installation, image: tuple[str, ...], force: bool, as_json: bool) -> None:
    """Remove images from the store. For root.

    Exit status: 0 removed; 1 an image is protected, or there is no such image; 2 wrong usage.
    """
    with changed(installation) as store:
        chosen, rules = [store.find(name) for name in image], store.policy.images
        done = [
            entry
            for entry in chosen
            if store.images.at(entry.store).run(after(LISTING_S), eviction.evict, entry.name, rules.keep.lease, force)
        ]
        for entry in done:
            store.emit(events.IMAGE_EVICTED, name=entry.name, reason="warmstart images rm")
        store.site().forget_gone(after(LISTING_S))
    protected = [entry.name for entry in chosen if entry not in done]
    if as_json:
        show_json({"removed": [entry.name for entry in done], "kept": protected})
    else:
        show_table(("result", "image"), [*(("removed", e.name) for e in done), *(("protected", n) for n in protected)])
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


def _verify(store: ImageStore, entry: ImageEntry) -> dict[str, str]:
    """Return the result as --json has it; `problem` is "" for an image that is intact."""
    images, name = store.images.at(entry.store), entry.name
    check = images.run(after(HASHING_S), published.check_bytes, name, WRITER)
    if check.problem:
        images.run(after(LISTING_S), published.put_away, name, check.inode)
        store.emit(events.IMAGE_DAMAGED, image=name, digest="", reason=check.problem)
        return {"name": name, "problem": check.problem, "how": "damaged"}
    return {"name": name, "problem": "", "how": "intact"}


def _show_imports(coming: list[Import]) -> None:
    if coming:
        shown = IMPORT_COLUMNS
        rows = [known._asdict() for known in coming]
        show_table([column.name for column in shown], [[c.show(row[c.name]) for c in shown] for row in rows])
