"""`warmstart cache export` and `import`: copy bundles to and from another cluster. Root only."""

from __future__ import annotations

import os
from typing import NamedTuple

import click

from warmstart.audit import events
from warmstart.cli.cache import (
    NO,
    NamespaceFilter,
    admin_session,
    administrator,
    filter_options,
    find,
    store_maintenance,
)
from warmstart.cli.output import answer, json_option, progress, show_json, show_table, warn
from warmstart.errors import WarmstartError
from warmstart.host.files import ensure_dir, opened_dir
from warmstart.maintenance.bundles import (
    audited_survey,
    bundle_deadline,
    labels,
    namespace_of,
    repack_settings,
)
from warmstart.paths import Installation
from warmstart.profiles.defined import TREES
from warmstart.repack import transfer
from warmstart.repack.transfer import Item, Received, ReceiveSettings
from warmstart.session import Session
from warmstart.store import manifest
from warmstart.store.layout import BUNDLE, MANIFEST, Namespace
from warmstart.store.maintenance import Bundle

STEP = "import"
COLUMNS = ("bundle", "profile", "new", "known", "rejected", "problem")


class _Row(NamedTuple):
    """The result of importing one bundle."""

    scope: str
    profile: str
    namespace: str
    source: str  # the bundle's id in the export
    bundle: str | None  # its id in this store; None if nothing was published
    entries: int
    known: int
    rejected: dict[str, str]
    problem: str


@click.command("export")
@click.argument("target", metavar="DIRECTORY")
@click.argument("bundles", nargs=-1, metavar="[BUNDLE]...")
@filter_options
@json_option
@click.pass_obj
def export_command(
    installation: Installation, /, target: str, bundles: tuple[str, ...], as_json: bool, **options: str | None
) -> None:
    """Export bundles (default: all but packed trees) into a directory, for another cluster.

    Bundles that it has already are not written again. An export is as private as the caches in it: keep it
    where only root can read it.

    Exit status: 0 done; 1 nothing to export, or a bundle could not be read; 2 not root, or refused.
    """
    only = NamespaceFilter(**options)
    with admin_session(installation) as session:
        there = list(audited_survey(session))
        chosen = only.select(there, {find(there, name).bundle for name in bundles})
        chosen = [bundle for bundle in chosen if bundle.profile != TREES]  # another cluster packs its own
        done: list[Bundle] = []
        if chosen:
            with transfer.writing(target) as writer:
                done = [b for b in progress(chosen, "export", quiet=as_json) if _export(session, writer, b)]
                writer.finish()
            size = sum(bundle.size for bundle in done)
            session.audit.emit(events.CACHE_EXPORTED, target=target, bundles=len(done), bytes=size, by=administrator())
    answer(f"{len(done)} bundles exported to {target}", [bundle._asdict() for bundle in done], as_json=as_json)
    if not done or len(done) < max(len(chosen), len(bundles)) or session.failures:
        raise click.exceptions.Exit(NO)


@click.command("import")
@click.argument("source", metavar="DIRECTORY")
@click.argument("bundles", nargs=-1, metavar="[BUNDLE]...")
@filter_options
@click.option("--to", help="Publish in this scope; default: the user's own, if this cluster has that user and uid.")
@click.option("--to-namespace", help="Publish in this namespace; the bundles must be of one profile and namespace.")
@json_option
@click.pass_obj
def import_command(
    installation: Installation, /, source: str, bundles: tuple[str, ...], as_json: bool, **options: str | None
) -> None:
    """Import bundles of an export (default: all).

    Every job that reads the scope will run the imported entries, so make sure that you trust the export's origin.
    Each bundle is compared with the export's list; its entries are validated again and packed anew. Entries that the
    store has already stay as they are.

    Exit status: 0 the store has all of them; 1 some were damaged, refused or not valid; 2 not root, no export, or the
    store fails or is busy.
    """
    to, to_namespace = options.pop("to"), options.pop("to_namespace")
    only = NamespaceFilter(**options)
    rows: list[_Row] = []
    with store_maintenance(installation) as (session, _):
        settings = ReceiveSettings(repack_settings(session), session.policy.profiles)
        with transfer.reading(os.path.abspath(source)) as reader:
            there = reader.items()
            chosen = only.select(there, {find(there, name).bundle for name in bundles})
            _check_one(chosen, to_namespace)
            for item in progress(chosen, "import", quiet=as_json):
                try:
                    where = transfer.destination(session.policy.paths.store, item, to, to_namespace)
                    received = transfer.receive(reader, item, where, settings, bundle_deadline())
                except WarmstartError as error:
                    session.failed(STEP, error)
                    rows.append(_Row(*item, *Received(None, 0, 0, {}), str(error)))
                    continue
                _audit(session, item, where, received)
                rows.append(_Row(*item, *received, ""))
    _show(rows, as_json)
    if not rows or len(rows) < len(bundles) or any(row.problem or row.rejected for row in rows):
        raise click.exceptions.Exit(NO)


def _export(session: Session, writer: transfer.Writer, bundle: Bundle) -> bool:
    """Add one bundle and its manifest to the export. Return False, after a warning, if it cannot be read."""
    where = namespace_of(bundle, session.store)
    name = Item(*where[1:], bundle.bundle).path
    ensure_dir(session.paths.maintenance, 0o700)
    with opened_dir(session.paths.maintenance) as folder:
        # A file without a name leaves nothing behind if this process dies.
        fd = os.open(".", os.O_RDWR | os.O_TMPFILE | os.O_CLOEXEC, 0o600, dir_fd=folder)
    try:
        session.store.fetch(where, bundle.bundle, bundle.sha256, bundle.size, bundle_deadline(), into=fd)
        source = session.store.manifest(where, bundle.bundle, bundle_deadline())
        writer.add(name + BUNDLE, fd, bundle.sha256)
        writer.add_text(name + MANIFEST, manifest.encode(source))
    except WarmstartError as error:
        if isinstance(error, transfer.ExportRefused):
            raise
        session.failed("export", error)
        warn(str(error))
        return False
    finally:
        os.close(fd)
    return True


def _check_one(chosen: list[Item], to_namespace: str | None) -> None:
    if to_namespace and len({(item.profile, item.namespace) for item in chosen}) > 1:
        raise click.UsageError("--to-namespace takes bundles of one profile and namespace: add --profile, --namespace")


def _audit(session: Session, item: Item, where: Namespace, received: Received) -> None:
    if received.rejected:
        reasons: dict[str, int] = {}
        for why in received.rejected.values():
            reasons[why] = reasons.get(why, 0) + 1
        examples = sorted(received.rejected.items())[:20]
        session.audit.emit(events.ENTRY_REJECTED, profile=where.profile, reasons=reasons, examples=examples)
    if received.bundle:
        made = {"bundle": received.bundle, "entries": received.entries, "source": item.path, "by": administrator()}
        session.audit.emit(events.BUNDLE_IMPORTED, **labels(where), **made)


def _show(rows: list[_Row], as_json: bool) -> None:
    if as_json:
        show_json([row._asdict() for row in rows])
        return
    shown = [(row.source, row.profile, row.entries, row.known, len(row.rejected), row.problem) for row in rows]
    show_table(COLUMNS, shown)
