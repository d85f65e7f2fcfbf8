"""`warmstart cache`: list, verify, compact, clean and promote the bundles in the store.

Root only: only the store's owner can read or write the store, and root's `StoreClient` runs as that owner. Every change
is audited.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from typing import NamedTuple, TypeVar

import click

from warmstart.audit import events
from warmstart.audit.line import visible
from warmstart.entry.cli.lazy import LazyGroup
from warmstart.entry.cli.output import UNUSABLE, fail, json_option, say, show_json, show_table, warn
from warmstart.entry.maintenance.session import MaintenanceSession, labels, maintenance_session
from warmstart.entry.maintenance.store import StoreMaintenance
from warmstart.errors import WarmstartError
from warmstart.paths import Installation
from warmstart.policy.units import BYTES
from warmstart.profiles.defined import FILES
from warmstart.repack import merge
from warmstart.repack.transfer import Item
from warmstart.store.layout import Namespace
from warmstart.store.maintenance import Bundle
from warmstart.store.manifest import Manifest

NO = 1
COLUMNS = ("scope", "profile", "namespace", "bundle", "entries", "size", "user", "last used (UTC)")
_FILTERS = (
    click.option("--scope", help="Only bundles of this scope: user-UID-NAME, account-NAME, site."),
    click.option("--profile", help="Only bundles of this profile."),
    click.option("--namespace", help="Only bundles of this namespace."),
)

AnyBundle = TypeVar("AnyBundle", Bundle, Item)


def filter_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options of a `NamespaceFilter` to a command."""
    for option in reversed(_FILTERS):
        command = option(command)
    return command


class NamespaceFilter(NamedTuple):
    """Filter of bundles and namespaces by the command's options; None matches all."""

    scope: str | None
    profile: str | None
    namespace: str | None

    def matches(self, item: Bundle | Item | Namespace) -> bool:
        """Return whether a bundle, a bundle in an export, or a namespace passes the filter."""
        namespace = item.name if isinstance(item, Namespace) else item.namespace
        values = (item.scope, item.profile, namespace)
        return all(only in (None, value) for only, value in zip(self, values, strict=True))

    def select(self, items: Iterable[AnyBundle], bundles: Collection[str]) -> list[AnyBundle]:
        """Return the bundles that pass the filter; if `bundles` is not empty, only those ids."""
        return [item for item in items if self.matches(item) and (not bundles or item.bundle in bundles)]


@contextmanager
def store_maintenance(installation: Installation) -> Iterator[tuple[MaintenanceSession, StoreMaintenance]]:
    """Open a session and lock the store for maintenance. Prints an error and exits with status 2."""
    with admin_session(installation) as session:
        yield session, StoreMaintenance(session)


@contextmanager
def admin_session(installation: Installation) -> Iterator[MaintenanceSession]:
    """Open a session, which needs root. Prints an error and exits with status 2."""
    try:
        with maintenance_session(installation, "cache") as session:
            yield session
    except (WarmstartError, OSError) as error:
        fail(error, getattr(error, "hint", ""))


@click.group(
    cls=LazyGroup,
    modules={
        **{name: f"warmstart.entry.cli.block:{name}" for name in ("block", "unblock", "blocked")},
        **{name: f"warmstart.entry.cli.transfer:{name}_command" for name in ("export", "import")},
    },
)
def cache() -> None:
    """List, verify, clean and block the caches in the store, and copy them to other clusters. For root."""


@cache.command()
@filter_options
@json_option
@click.pass_obj
def ls(installation: Installation, /, as_json: bool, **options: str | None) -> None:
    """List bundles, the most recently used last.

    Exit status: 0 there are bundles; 1 there are none; 2 not root, or no policy, or the store fails.
    """
    only = NamespaceFilter(**options)
    with admin_session(installation) as session:
        found = [bundle for bundle in session.bundles() if only.matches(bundle)]
        failures = session.failures
    found.sort(key=lambda bundle: bundle.used)
    if as_json:
        show_json([bundle._asdict() for bundle in found])
    else:
        show_table(COLUMNS, map(_row, found))
    for failure in failures:
        warn(str(failure))
    if failures:
        raise click.exceptions.Exit(UNUSABLE)
    if not found:
        raise click.exceptions.Exit(NO)


@cache.command()
@click.argument("bundle")
@json_option
@click.pass_obj
def show(installation: Installation, bundle: str, as_json: bool) -> None:
    """Show a bundle's manifest: its producer, facts and entries, and the checksums of declared files.

    Exit status: 0 shown; 1 no such bundle; 2 not root, or the store fails.
    """
    with admin_session(installation) as session:
        found = _manifest(session, bundle)
    if found is None:
        warn(f"there is no bundle {bundle}")
        raise click.exceptions.Exit(NO)
    if as_json:
        show_json(_as_json(found))
        return
    facts = {**found.facts, **{f"producer {key}": value for key, value in found.producer._asdict().items()}}
    show_table(("", ""), list(facts.items()), f"{found.scope} {found.profile} {bundle}")
    show_table(
        ("entry", "files", "size", "first published in"),
        [
            (entry, len(files), _size(sum(f.size for f in files.values())), _first_in(found, entry))
            for entry, files in found.entries.items()
        ],
    )
    if found.supersedes:
        show_table(
            ("supersedes in bundles before", "entry"), [(mark, entry) for entry, mark in found.supersedes.items()]
        )
    if found.profile == FILES:  # in the format of `sha256sum --check`
        for files in found.entries.values():
            for path, file in files.items():
                click.echo(visible(f"{file.sha256}  {path}"))


@cache.command()
@click.argument("bundles", nargs=-1, metavar="[BUNDLE]...")
@filter_options
@json_option
@click.pass_obj
def verify(installation: Installation, /, bundles: tuple[str, ...], as_json: bool, **options: str | None) -> None:
    """Read bundles (default: all) and compare every file with its SHA-256.

    A damaged bundle is quarantined at once, and no job is seeded with it any more.

    Exit status: 0 all are intact; 1 a bundle is damaged, missing or cannot be read; 2 not root, or the store is busy.
    """
    only = NamespaceFilter(**options)
    with store_maintenance(installation) as (_, work):
        chosen = only.select(work.bundles(), bundles)
        damaged = work.scrub(chosen)
    report = work.report
    if as_json:
        show_json({**report._asdict(), "damaged": damaged})
    else:
        show_table(("damaged bundle", "problem"), damaged.items()) if damaged else None
        say(f"{report.verified} verified, {len(damaged)} damaged, {report.failed} could not be read")
    if damaged or report.failed or len(chosen) < len(bundles):
        raise click.exceptions.Exit(NO)


@cache.command()
@filter_options
@click.option(
    "--fewest", type=click.IntRange(min=2), default=2, show_default=True, help="The fewest bundles worth merging."
)
@json_option
@click.pass_obj
def compact(installation: Installation, /, fewest: int, as_json: bool, **options: str | None) -> None:
    """Merge each user's bundles in each namespace into one. The old ones stay for an hour.

    Exit status: 0 done; 1 some could not be merged; 2 not root, or the store fails or is busy.
    """
    only = NamespaceFilter(**options)
    with store_maintenance(installation) as (_, work):
        for where in filter(only.matches, work.namespaces()):
            work.sweep(where)
            work.compact(where, fewest)
    _report(work, as_json)
    if work.report.failed:
        raise click.exceptions.Exit(NO)


@cache.command()
@json_option
@click.pass_obj
def gc(installation: Installation, as_json: bool) -> None:
    """Remove files of publishers that died, replaced bundles, bundles that the policy lets expire, empty namespaces.

    Exit status: 0 done; 2 not root, or the store fails or is busy.
    """
    with store_maintenance(installation) as (_, work):
        for where in work.namespaces():
            work.sweep(where)
        work.collect_garbage()
        work.remove_empty()
    _report(work, as_json)


@cache.command()
@filter_options
@json_option
@click.pass_obj
def reindex(installation: Installation, /, as_json: bool, **options: str | None) -> None:
    """Rebuild the indexes from the bundles' manifests alone.

    Exit status: 0 done; 1 some manifests cannot be used; 2 not root, or the store fails or is busy.
    """
    only = NamespaceFilter(**options)
    with store_maintenance(installation) as (session, work):
        chosen = [where for where in work.namespaces() if only.matches(where)]
        made = [(where, session.store.reindex(where, session.store_deadline())) for where in chosen]
    if as_json:
        show_json([{**where._asdict(), **answer._asdict()} for where, answer in made])
    else:
        rows = [(*where[1:], answer.bundles, len(answer.refused)) for where, answer in made]
        show_table((*COLUMNS[:3], "bundles", "refused"), rows)
    if any(answer.refused for _, answer in made):
        raise click.exceptions.Exit(NO)


@cache.command("promote")
@click.argument("bundle")
@click.argument("entries", nargs=-1, metavar="[ENTRY]...")
@click.option("--to", "scope", required=True, help="The more trusted scope: account-NAME or site.")
@json_option
@click.pass_obj
def promote_command(
    installation: Installation, bundle: str, entries: tuple[str, ...], scope: str, as_json: bool
) -> None:
    """Copy entries of a bundle (default: all) into a more trusted scope.

    Every job that reads that scope will run them, so check first who made them (`show`). They also stay in their own
    scope, and keep the name of the user whose job made them.

    Exit status: 0 published; 1 that scope has them all; 2 refused, or not root, or the store fails or is busy.
    """
    with store_maintenance(installation) as (session, work):
        found = _find(work.bundles(), bundle)
        if found is None:
            warn(f"there is no bundle {bundle}")
            raise click.exceptions.Exit(UNUSABLE)
        where = session.namespace(found)
        choice = merge.Choice(where, bundle, entries, scope)
        made = merge.promote(session.repack_settings, choice, session.bundle_deadline())
        session.audit.emit(
            events.ENTRY_PROMOTED,
            **labels(where),
            bundle=bundle,
            into=scope,
            published=made.bundle,
            entries=list(entries)[:20],
            by=administrator(),
        )
    if as_json:
        show_json(made._asdict())
    else:
        say(f"published as {made.bundle}" if made.bundle else f"nothing to do: {scope} has all of these entries")
    if not made.bundle:
        raise click.exceptions.Exit(NO)


def _find(bundles: list[Bundle], name: str) -> Bundle | None:
    return next((bundle for bundle in bundles if bundle.bundle == name), None)


def _manifest(session: MaintenanceSession, name: str) -> Manifest | None:
    found = _find(session.bundles(), name)
    if found is None:
        return None
    return session.store.manifest(session.namespace(found), name, session.bundle_deadline())


def _first_in(found: Manifest, entry: str) -> str | None:
    return found.origins[entry].bundle if entry in found.origins else None


def _as_json(found: Manifest) -> dict[str, object]:
    origins = {entry: origin._asdict() for entry, origin in found.origins.items()}
    return {**found._asdict(), "producer": found.producer._asdict(), "origins": origins}


def _report(work: StoreMaintenance, as_json: bool) -> None:
    if as_json:
        show_json(work.report._asdict())
    else:
        show_table(work.report._fields, [tuple(work.report)])


def _row(bundle: Bundle) -> tuple[object, ...]:
    where = (bundle.scope, bundle.profile, bundle.namespace, bundle.bundle)
    return (*where, bundle.entries, _size(bundle.size), bundle.user, when(bundle.used))


def _size(size: int) -> str:
    unit = max((unit for unit, value in BYTES.items() if value <= max(size, 1)), key=lambda unit: BYTES[unit])
    return f"{size / BYTES[unit]:.1f} {unit}" if unit != "B" else f"{size} B"


def when(at: float) -> str:
    """Format a time (seconds since the epoch) in UTC."""
    return time.strftime("%Y-%m-%d %H:%M", time.gmtime(at))


def administrator() -> str:
    """Return who runs the command: sudo's user, else root. Informative only, because it comes from the environment."""
    return os.environ.get("SUDO_USER") or "root"
