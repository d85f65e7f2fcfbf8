"""`warmstart cache`: what the store holds, whether it is whole, and what an administrator does about it.

Only root can: the store is its owner's alone, and root acts as that owner in the worker. Every change is audited.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

import click

from warmstart.audit import events
from warmstart.entry.cli.output import UNUSABLE, fail, json_option, say, show_json, show_table, warn
from warmstart.entry.maintenance.session import MaintenanceSession, maintenance_session
from warmstart.entry.maintenance.store import StoreMaintenance
from warmstart.errors import WarmstartError
from warmstart.paths import Installation
from warmstart.policy.schema import BYTES
from warmstart.profiles.defined import FILES
from warmstart.repack import merge
from warmstart.store.layout import Namespace
from warmstart.store.maintenance import Bundle
from warmstart.store.manifest import Manifest

NO = 1
COLUMNS = ("scope", "profile", "namespace", "bundle", "entries", "size", "user", "last used (UTC)")
_PLACE = (
    click.option("--scope", help="Only this scope: user-UID-NAME, account-NAME, site."),
    click.option("--profile", help="Only this profile."),
    click.option("--namespace", help="Only this namespace."),
)


def place_options(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the options that `Place` is made of."""
    for option in reversed(_PLACE):
        command = option(command)
    return command


class NamespaceFilter(NamedTuple):
    """What the options of a command name; None is all."""

    scope: str | None
    profile: str | None
    namespace: str | None

    def holds(self, found: Bundle | Namespace) -> bool:
        """Tell whether a bundle or a namespace is meant."""
        name = found.name if isinstance(found, Namespace) else found.namespace
        wanted = (self.scope, self.profile, self.namespace)
        return all(want in (None, has) for want, has in zip(wanted, (found.scope, found.profile, name), strict=True))


@contextmanager
def store_maintenance(installation: Installation) -> Iterator[tuple[MaintenanceSession, StoreMaintenance]]:
    """Give the store, locked; says what is wrong and leaves with status 2 where that can't be."""
    with run_as_root(installation) as run:
        yield run, StoreMaintenance(run)


@contextmanager
def run_as_root(installation: Installation) -> Iterator[MaintenanceSession]:
    """Give a run; says what is wrong and leaves with status 2 where there can be none."""
    try:
        with maintenance_session(installation, "cache", os.uname().nodename.partition(".")[0]) as run:
            yield run
    except (WarmstartError, OSError) as error:
        fail(error, getattr(error, "hint", ""))


@click.group()
def cache() -> None:
    """Look at the caches in the store, verify and clean them, block what must not be used."""


@cache.command()
@place_options
@json_option
@click.pass_obj
def ls(installation: Installation, /, as_json: bool, **options: str | None) -> None:
    """List the bundles, the last used at the end.

    Exit status: 0 there are some; 1 there are none; 2 not root, or no policy, or the store fails.
    """
    place = NamespaceFilter(**options)
    with run_as_root(installation) as run:
        found = [bundle for bundle in run.store.survey(run.store_deadline()) if place.holds(bundle)]
    found.sort(key=lambda bundle: bundle.used)
    if as_json:
        show_json([bundle._asdict() for bundle in found])
    else:
        show_table(COLUMNS, map(_row, found))
    if not found:
        raise click.exceptions.Exit(NO)


@cache.command()
@click.argument("bundle")
@json_option
@click.pass_obj
def show(installation: Installation, bundle: str, as_json: bool) -> None:
    """Show what a bundle's manifest says: who made it, of what, its entries; of declared files the checksums, too.

    Exit status: 0 shown; 1 no such bundle; 2 not root, or the store fails.
    """
    with run_as_root(installation) as run:
        found = _manifest(run, bundle)
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
    if found.profile == FILES:  # as `sha256sum --check` takes them
        for files in found.entries.values():
            for path, file in files.items():
                click.echo(f"{file.sha256}  {path}")


@cache.command()
@click.argument("wanted", nargs=-1, metavar="[BUNDLE]...")
@place_options
@json_option
@click.pass_obj
def verify(installation: Installation, /, wanted: tuple[str, ...], as_json: bool, **options: str | None) -> None:
    """Read bundles whole and compare every file with its SHA-256; all bundles, or those that are named.

    What is damaged is quarantined at once; no job is given it any more.

    Exit status: 0 all are whole; 1 some were damaged, or could not be read; 2 not root, or the store is at work.
    """
    place = NamespaceFilter(**options)
    with store_maintenance(installation) as (_, work):
        chosen = [b for b in work.bundles() if place.holds(b) and (not wanted or b.bundle in wanted)]
        damaged = work.scrub(chosen)
    report = work.report
    if as_json:
        show_json({**report._asdict(), "damaged": damaged})
    else:
        show_table(("damaged bundle", "problem"), damaged.items()) if damaged else None
        say(f"{report.verified} verified, {len(damaged)} damaged, {report.failed} not readable now")
    if damaged or report.failed or len(chosen) < len(wanted):
        raise click.exceptions.Exit(NO)


@cache.command()
@place_options
@click.option("--fewest", type=click.IntRange(min=2), default=2, show_default=True, help="Bundles worth the work.")
@json_option
@click.pass_obj
def compact(installation: Installation, /, fewest: int, as_json: bool, **options: str | None) -> None:
    """Make one bundle of each user's bundles in each namespace; the old ones stay for an hour.

    Exit status: 0 done; 2 not root, or the store fails or is at work.
    """
    place = NamespaceFilter(**options)
    with store_maintenance(installation) as (_, work):
        for where in filter(place.holds, work.namespaces()):
            work.sweep(where)
            work.compact(where, fewest)
    _report(work, as_json)


@cache.command()
@json_option
@click.pass_obj
def gc(installation: Installation, as_json: bool) -> None:
    """Remove what dead publishers left, what was replaced, and what the policy's maintenance section says.

    Exit status: 0 done; 2 not root, or the store fails or is at work.
    """
    with store_maintenance(installation) as (_, work):
        for where in work.namespaces():
            work.sweep(where)
        work.collect_garbage()
    _report(work, as_json)


@cache.command()
@place_options
@json_option
@click.pass_obj
def reindex(installation: Installation, /, as_json: bool, **options: str | None) -> None:
    """Make the indexes again from the bundles' manifests alone.

    Exit status: 0 done; 1 there are manifests that can't be used; 2 not root, or the store fails or is at work.
    """
    place = NamespaceFilter(**options)
    with store_maintenance(installation) as (run, work):
        chosen = [where for where in work.namespaces() if place.holds(where)]
        made = [(where, run.store.reindex(where, run.store_deadline())) for where in chosen]
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
@click.option("--to", "scope", required=True, help="A more trusted scope: account-NAME or site.")
@json_option
@click.pass_obj
def promote_command(
    installation: Installation, bundle: str, entries: tuple[str, ...], scope: str, as_json: bool
) -> None:
    """Copy entries of a bundle, all by default, into a more trusted scope.

    Every job that reads that scope will run them: look at who made them (`show`) first. They stay in their
    own scope, too, and keep the name of the user whose job made them.

    Exit status: 0 published; 1 that scope has them all; 2 refused, or not root, or the store fails or is at work.
    """
    with store_maintenance(installation) as (run, work):
        found = _find(work.bundles(), bundle)
        if found is None:
            warn(f"there is no bundle {bundle}")
            raise click.exceptions.Exit(UNUSABLE)
        where = Namespace(run.policy.paths.store, found.scope, found.profile, found.namespace)
        choice = merge.Choice(where, bundle, entries, scope)
        made = merge.promote(run.bench, choice, run.bundle_deadline())
        named = {"scope": where.scope, "profile": where.profile, "namespace": where.name, "bundle": bundle}
        listed = list(entries)[:20]
        run.audit.emit(
            events.ENTRY_PROMOTED, **named, into=scope, published=made.bundle, entries=listed, by=administrator()
        )
    if as_json:
        show_json(made._asdict())
    else:
        say(f"published as {made.bundle}" if made.bundle else f"{scope} has them all")
    if not made.bundle:
        raise click.exceptions.Exit(NO)


def _find(found: list[Bundle], name: str) -> Bundle | None:
    return next((bundle for bundle in found if bundle.bundle == name), None)


def _manifest(run: MaintenanceSession, name: str) -> Manifest | None:
    found = _find(run.store.survey(run.store_deadline()), name)
    if found is None:
        return None
    where = Namespace(run.policy.paths.store, found.scope, found.profile, found.namespace)
    return run.store.manifest(where, name, run.bundle_deadline())


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
    """Return a moment for people."""
    return time.strftime("%Y-%m-%d %H:%M", time.gmtime(at))


def administrator() -> str:
    """Return who is at work: the login behind sudo, else root; a word of the environment, for people only."""
    return os.environ.get("SUDO_USER") or "root"
