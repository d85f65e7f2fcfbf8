"""`warmstart cache export` and `import`: bundles for, and from, another cluster."""

from __future__ import annotations

import os
from typing import NamedTuple

import click

from warmstart.audit import events
from warmstart.entry.cli.cache import NO, NamespaceFilter, administrator, place_options, run_as_root, store_maintenance
from warmstart.entry.cli.output import json_option, progress, say, show_json, show_table, warn
from warmstart.entry.maintenance.session import MaintenanceSession
from warmstart.errors import WarmstartError
from warmstart.host.files import ensure_dir, opened_dir
from warmstart.paths import Installation
from warmstart.repack import transfer
from warmstart.repack.transfer import Item, Received, ReceiveSettings
from warmstart.store import manifest
from warmstart.store.layout import BUNDLE, MANIFEST, Namespace
from warmstart.store.maintenance import Bundle

STEP = "import"
COLUMNS = ("scope", "profile", "namespace", "bundle", "published", "known", "rejected", "problem")


class _Row(NamedTuple):
    """What became of one bundle of an export, as `import` shows it."""

    scope: str
    profile: str
    namespace: str
    source: str  # its id in the export
    bundle: str | None  # its id here
    entries: int
    known: int
    rejected: dict[str, str]
    problem: str


@click.command("export")
@click.argument("target", metavar="DIRECTORY|FILE.tar")
@click.argument("wanted", nargs=-1, metavar="[BUNDLE]...")
@place_options
@json_option
@click.pass_obj
def export_command(
    installation: Installation, /, target: str, wanted: tuple[str, ...], as_json: bool, **options: str | None
) -> None:
    """Write bundles into a directory, or one tar file, for another cluster; all bundles, or those that are named.

    A directory that has some of them already is completed. What is in an export is as private as the caches are:
    keep it where only root can read it.

    Exit status: 0 done; 1 nothing to export, or a bundle could not be read; 2 not root, or refused.
    """
    place = NamespaceFilter(**options)
    with run_as_root(installation) as run:
        found = [
            b for b in run.store.survey(run.store_deadline()) if place.holds(b) and (not wanted or b.bundle in wanted)
        ]
        done: list[Bundle] = []
        if found:
            with transfer.writing(target) as writer:
                done = [b for b in progress(found, "export", quiet=as_json) if _exported(run, writer, b)]
                writer.finish()
            size = sum(bundle.size for bundle in done)
            run.audit.emit(events.CACHE_EXPORTED, target=target, bundles=len(done), bytes=size, by=administrator())
    if as_json:
        show_json([bundle._asdict() for bundle in done])
    else:
        say(f"{len(done)} bundles exported to {target}")
    if not done or len(done) < max(len(found), len(wanted)):
        raise click.exceptions.Exit(NO)


@click.command("import")
@click.argument("source", metavar="DIRECTORY|FILE.tar")
@click.argument("wanted", nargs=-1, metavar="[BUNDLE]...")
@place_options
@click.option("--to", help="The scope to publish in; without it users' own, where the cluster has that user and uid.")
@click.option("--to-namespace", help="The namespace to publish in, for bundles of one profile and namespace.")
@json_option
@click.pass_obj
def import_command(
    installation: Installation, /, source: str, wanted: tuple[str, ...], as_json: bool, **options: str | None
) -> None:
    """Publish the bundles of an export: all, or those that are named or that the options hold.

    Every job that reads the scope will run what is in them: know where the export is from. Each bundle is compared
    with the export's list, its entries are validated again and packed anew. Entries that are here already stay.

    Exit status: 0 all is here now; 1 some was damaged, refused or not valid; 2 not root, no export, or the store
    fails or is at work.
    """
    to, to_namespace = options.pop("to"), options.pop("to_namespace")
    place = NamespaceFilter(**options)
    rows: list[_Row] = []
    with store_maintenance(installation) as (run, _):
        settings = ReceiveSettings(run.bench, run.policy.profiles)
        with transfer.reading(os.path.abspath(source), run.policy.validate_user, run.bundle_deadline()) as reader:
            chosen = [i for i in reader.items() if place.holds(_named(run, i)) and (not wanted or i.bundle in wanted)]
            _check_one(chosen, to_namespace)
            for item in progress(chosen, "import", quiet=as_json):
                try:
                    where = transfer.destination(run.policy.paths.store, item, to, to_namespace)
                    arrived = transfer.receive(reader, item, where, settings, run.bundle_deadline())
                except WarmstartError as error:
                    run.failed(STEP, error)
                    rows.append(_Row(*item, *Received(None, 0, 0, {}), str(error)))
                    continue
                _tell(run, item, where, arrived)
                rows.append(_Row(*item, *arrived, ""))
    _show(rows, as_json)
    if not rows or len(rows) < len(wanted) or any(row.problem or row.rejected for row in rows):
        raise click.exceptions.Exit(NO)


def _exported(run: MaintenanceSession, writer: transfer.Writer, bundle: Bundle) -> bool:
    """Add one bundle and its manifest; False where the store does not give it."""
    where = Namespace(run.policy.paths.store, bundle.scope, bundle.profile, bundle.namespace)
    name = Item(*where[1:], bundle.bundle).path
    ensure_dir(run.paths.maintenance, 0o700)
    with opened_dir(run.paths.maintenance) as folder:
        # Without a name, so that nothing is left of whoever dies here.
        fd = os.open(".", os.O_RDWR | os.O_TMPFILE | os.O_CLOEXEC, 0o600, dir_fd=folder)
    try:
        run.store.fetch(where, bundle.bundle, bundle.sha256, bundle.size, run.bundle_deadline(), into=fd)
        found = run.store.manifest(where, bundle.bundle, run.bundle_deadline())
        writer.add(name + BUNDLE, fd, bundle.sha256)
        writer.add_text(name + MANIFEST, manifest.encode(found))
    except WarmstartError as error:
        if isinstance(error, transfer.ExportRefused):
            raise
        run.failed("export", error)
        warn(str(error))
        return False
    finally:
        os.close(fd)
    return True


def _named(run: MaintenanceSession, item: Item) -> Namespace:
    return Namespace(run.policy.paths.store, item.scope, item.profile, item.namespace)


def _check_one(chosen: list[Item], to_namespace: str | None) -> None:
    if to_namespace and len({(item.profile, item.namespace) for item in chosen}) > 1:
        raise click.UsageError("--to-namespace is for one profile and namespace: give --profile and --namespace, too")


def _tell(run: MaintenanceSession, item: Item, where: Namespace, arrived: Received) -> None:
    named = {"scope": where.scope, "profile": where.profile, "namespace": where.name}
    if arrived.rejected:
        reasons: dict[str, int] = {}
        for why in arrived.rejected.values():
            reasons[why] = reasons.get(why, 0) + 1
        examples = sorted(arrived.rejected.items())[:20]
        run.audit.emit(events.ENTRY_REJECTED, profile=where.profile, reasons=reasons, examples=examples)
    if arrived.bundle:
        made = {"bundle": arrived.bundle, "entries": arrived.entries, "source": item.path, "by": administrator()}
        run.audit.emit(events.BUNDLE_IMPORTED, **named, **made)


def _show(rows: list[_Row], as_json: bool) -> None:
    if as_json:
        show_json([row._asdict() for row in rows])
        return
    show_table(COLUMNS, [(*row[:4], row.entries, row.known, len(row.rejected), row.problem) for row in rows])
