"""`warmstart cache`: list, verify, compact, clean and promote the bundles in the store.

Root only: only the store's owner can read or write the store, and root's `StoreClient` runs as that owner. Every change
is audited. Others can list what their own jobs say of bundles.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import NamedTuple

import click

from warmstart.audit import events
from warmstart.audit.line import visible
from warmstart.audit.query import LineFilter
from warmstart.cli.output import (
    UNUSABLE,
    Column,
    answer,
    fail,
    json_option,
    rfc3339,
    say,
    show_fields,
    show_json,
    show_rows,
    show_table,
    size,
    warn,
)
from warmstart.cli.own import OwnLog, published
from warmstart.errors import PolicyError, WarmstartError
from warmstart.images.store import eviction
from warmstart.images.store.client import ImageStoreClient
from warmstart.maintenance.bundles import bundle_deadline, labels, namespace_of, repack_settings, survey
from warmstart.maintenance.store import StoreMaintenance, StoreReport
from warmstart.paths import Installation
from warmstart.policy.current import current_policy
from warmstart.profiles.contract import FILES
from warmstart.repack import rewrite
from warmstart.session import Session, is_root, open_session, require_root, store_deadline
from warmstart.store import bundles
from warmstart.store.client import StoreClient
from warmstart.store.layout import Namespace
from warmstart.store.maintenance import Bundle
from warmstart.store.manifest import File, Manifest

NO = 1
REINDEXED = (Column("scope"), Column("profile"), Column("namespace"), Column("bundles"), Column("refused"))
SHORTEST = 6  # characters of a bundle's id or of its hash
SHORT = 12  # characters of an id in a list
COLUMNS = (
    Column("id"),
    Column("profile"),
    Column("entries"),
    Column("size", size),
    Column("user"),
    Column("namespace"),
    Column("image"),
)
_FILTERS = (
    click.option("--scope", help="Only bundles of this scope: user-UID-NAME, account-NAME, site."),
    click.option("--profile", help="Only bundles of this profile."),
    click.option("--namespace", help="Only bundles of this namespace, or of those that begin so (six characters)."),
)


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

    def matches(self, item: Bundle | Namespace) -> bool:
        """Return whether a bundle or a namespace passes the filter."""
        namespace = item.name if isinstance(item, Namespace) else item.namespace
        is_named = self.namespace in (None, namespace) or (
            len(str(self.namespace)) >= SHORTEST and namespace.startswith(str(self.namespace))
        )
        return is_named and self.scope in (None, item.scope) and self.profile in (None, item.profile)

    def select(self, items: Iterable[Bundle], bundles: Collection[str]) -> list[Bundle]:
        """Return the bundles that pass the filter; if `bundles` is not empty, only those ids."""
        return [item for item in items if self.matches(item) and (not bundles or item.bundle in bundles)]


@contextmanager
def store_reading(installation: Installation, command: str = "cache") -> Iterator[StoreClient]:
    """Open the store for reading, without a session's audit. Needs root. Prints an error and exits with status 2."""
    try:
        require_root(command)
        policy = current_policy(installation).policy
        with StoreClient(policy.store_user, policy.paths.store, f"cli-{os.getpid()}") as store:
            yield store
    except PolicyError as error:
        fail(error, error.hint)
    except WarmstartError as error:
        fail(error, error.hint)


@contextmanager
def store_maintenance(installation: Installation) -> Iterator[tuple[Session, StoreMaintenance]]:
    """Open a session and lock the store for maintenance. Prints an error and exits with status 2."""
    with admin_session(installation) as session:
        yield session, StoreMaintenance(session)


@contextmanager
def admin_session(installation: Installation, command: str = "cache") -> Iterator[Session]:
    """Open a session of a command, which needs root. Prints an error and exits with status 2."""
    try:
        with open_session(installation, command) as session:
            yield session
    except (WarmstartError, OSError) as error:
        fail(error, getattr(error, "hint", ""))


@click.group
def cache() -> None:
    """List, verify and clean the caches in the store. For root; `list` for users, too."""


@cache.command("list")
@filter_options
@click.option("--user", help="Only bundles that jobs of this user made, by name.")
@json_option
@click.pass_obj
def list_bundles(installation: Installation, /, user: str | None, as_json: bool, **options: str | None) -> None:
    """List bundles, the most recently used last. `id` is enough of a bundle's hash to name it by.

    Root is told of all. Others are told what their own jobs that are over published; what maintenance has merged or
    removed since it does not know.

    Exit status: 0 listed; 1 there are none; 2 no policy, or the store fails.
    """
    only = NamespaceFilter(**options)
    if not is_root():
        _show_own(installation, only, user, as_json=as_json)
        return
    failures: list[WarmstartError] = []  # of namespaces that could not be read
    with store_reading(installation) as store:
        chosen = [
            bundle for bundle in survey(store, failures.append) if only.matches(bundle) and user in (None, bundle.user)
        ]
        images = _images(installation, store, chosen)
    _show_bundles(chosen, lambda bundle: {"image": images[_group(bundle)]}, as_json=as_json)
    for failure in failures:
        warn(str(failure))
    if failures:
        raise click.exceptions.Exit(UNUSABLE)
    if not chosen:
        raise click.exceptions.Exit(NO)


def _show_own(installation: Installation, only: NamespaceFilter, user: str | None, *, as_json: bool) -> None:
    """List what the caller's own jobs say of bundles. Of those that no report tells the size of it is unknown."""
    known = published(OwnLog(installation).lines(LineFilter()))
    chosen = [bundle for bundle in known if only.matches(bundle) and user in (None, bundle.user)]
    _show_bundles(chosen, lambda bundle: {"size": bundle.size or None}, as_json=as_json)
    if not chosen:
        raise click.exceptions.Exit(NO)


def _show_bundles(
    bundles: Iterable[Bundle], further: Callable[[Bundle], Mapping[str, object]], *, as_json: bool
) -> None:
    """Print bundles, the most recently used last. A table has namespaces cut as ids are."""
    cut = None if as_json else SHORT
    rows = [
        {
            **bundle._asdict(),
            "id": bundle.bundle.partition("-")[2][:SHORT],
            "namespace": bundle.namespace[:cut],
            **further(bundle),
        }
        for bundle in sorted(bundles, key=lambda bundle: bundle.used)
    ]
    show_rows(COLUMNS, rows, as_json=as_json)


def _group(bundle: Bundle) -> tuple[str, str]:
    """Return what decides a bundle's facts."""
    return (bundle.profile, bundle.namespace)


def _images(installation: Installation, store: StoreClient, listed: list[Bundle]) -> dict[tuple[str, str], str]:
    """Return for which image the bundles of each namespace are: its reference, if the store has it; "" if for any."""
    policy, names = current_policy(installation).policy, dict[str, str]()
    with suppress(WarmstartError), ImageStoreClient.of(policy.store_user, policy.paths.store) as images:
        for entry in images.run(store_deadline(), eviction.inventory, policy.images.keep.lease):
            names[entry.digest] = entry.reference
    found: dict[tuple[str, str], str] = {}
    for bundle in listed:
        if _group(bundle) not in found:
            digest = ""
            with suppress(WarmstartError):  # damaged: `verify` says so
                digest = store.manifest(namespace_of(bundle, store), bundle.bundle, store_deadline()).facts.get(
                    "image", ""
                )
            found[_group(bundle)] = names.get(digest, digest[: len("sha256:") + SHORT])
    return found


@cache.command()
@click.argument("bundle")
@json_option
@click.pass_obj
def show(installation: Installation, bundle: str, as_json: bool) -> None:
    """Show a bundle's manifest: its producer, facts and entries, and the checksums of declared files.

    BUNDLE is an id, or the first six or more characters of it or of its hash.

    Exit status: 0 shown; 1 no such bundle, or more than one; 2 not root, or the store fails.
    """
    with store_reading(installation) as store:
        named = find(list(survey(store, lambda _: None)), bundle)
        manifest = store.manifest(namespace_of(named, store), named.bundle, bundle_deadline())
    if as_json:
        show_json(_as_json(manifest))
        return
    made = {f"producer.{key}": value for key, value in manifest.producer._asdict().items()}
    facts = {f"facts.{key}": value for key, value in manifest.facts.items()}
    about = {"bundle": named.bundle, "scope": manifest.scope, "profile": manifest.profile, "namespace": named.namespace}
    show_fields({**about, "sha256": named.sha256, "used": rfc3339(named.used), **made, **facts}.items())
    click.echo()
    rows = [
        (size(_bytes(files)), len(files), _first_in(manifest, entry), entry)
        for entry, files in manifest.entries.items()
    ]
    show_table(("size", "files", "first published in", "entry"), rows)
    if manifest.supersedes:
        click.echo()
        rows_below = [(mark, entry) for entry, mark in manifest.supersedes.items()]
        show_table(("supersedes in bundles before", "entry"), rows_below)
    if manifest.profile == FILES:  # in the format of `sha256sum --check`
        for files in manifest.entries.values():
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
    with store_maintenance(installation) as (session, work):
        chosen = _chosen(work, only, bundles)
        damaged = work.scrub(chosen)
    report = work.report
    if as_json:
        show_json({**report._asdict(), "damaged": damaged})
    else:
        if damaged:
            show_table(("damaged bundle", "problem"), damaged.items())
        say(f"{report.verified} verified, {len(damaged)} damaged, {report.failed} could not be read")
    if _tell_failures(session) or damaged:
        raise click.exceptions.Exit(NO)


@cache.command("rm")
@click.argument("bundles", nargs=-1, required=True, metavar="BUNDLE...")
@json_option
@click.pass_obj
def remove(installation: Installation, bundles: tuple[str, ...], as_json: bool) -> None:
    """Remove bundles from the store. Nodes that have copies seed nobody from them any more.

    What jobs publish later can have the same entries again.

    Exit status: 0 removed; 1 no such bundle, or more than one; 2 not root, or the store fails or is busy.
    """
    with store_maintenance(installation) as (_, work):
        chosen = _chosen(work, NamespaceFilter(None, None, None), bundles)
        work.remove(chosen, f"removed by {administrator()}")
    tell_counts(work.report, as_json)


@cache.command()
@filter_options
@json_option
@click.pass_obj
def compact(installation: Installation, /, as_json: bool, **options: str | None) -> None:
    """Merge each user's bundles in each namespace into one. The old ones stay for an hour.

    Exit status: 0 done; 1 a namespace fails, or some could not be merged; 2 not root, or the store is busy.
    """
    only = NamespaceFilter(**options)
    with store_maintenance(installation) as (session, work):
        for where in filter(only.matches, work.namespaces()):
            with work.isolated():
                work.sweep(where)
                work.compact(where, fewest=2)
    tell_counts(work.report, as_json)
    if _tell_failures(session):
        raise click.exceptions.Exit(NO)


@cache.command()
@filter_options
@json_option
@click.pass_obj
def reindex(installation: Installation, /, as_json: bool, **options: str | None) -> None:
    """Rebuild the indexes from the bundles' manifests alone.

    An index stays as it is where a manifest cannot be read or is damaged: what it took the place of would come back.

    Exit status: 0 done; 1 a namespace fails, or has manifests of other releases; 2 not root, or the store is busy.
    """
    only = NamespaceFilter(**options)
    made = []
    with store_maintenance(installation) as (session, work):
        for where in filter(only.matches, work.namespaces()):
            with work.isolated():
                made.append((where, session.store.run_in(session.store_deadline(), bundles.reindex, where)))
    rows = [{**where._asdict(), "namespace": where.name, **answer._asdict()} for where, answer in made]
    show_rows(REINDEXED, rows, as_json=as_json)
    if _tell_failures(session) or any(answer.refused for _, answer in made):
        raise click.exceptions.Exit(NO)


@cache.command()
@click.argument("bundle")
@click.argument("entries", nargs=-1, metavar="[ENTRY]...")
@click.option("--to", "scope", required=True, help="The more trusted scope: account-NAME or site.")
@json_option
@click.pass_obj
def promote(installation: Installation, bundle: str, entries: tuple[str, ...], scope: str, as_json: bool) -> None:
    """Copy entries of a bundle (default: all) into a more trusted scope.

    Every job that reads that scope will run them, so check first who made them (`show`). They also stay in their own
    scope, and keep the name of the user whose job made them.

    Exit status: 0 published; 1 that scope has them all, or no such bundle; 2 refused, not root, or the store fails.
    """
    with store_maintenance(installation) as (session, work):
        source = find(list(work.bundles()), bundle)
        where = namespace_of(source, session.store)
        made = rewrite.promote(repack_settings(session), where, source.bundle, entries, bundle_deadline(), scope=scope)
        session.audit.emit(
            events.ENTRY_PROMOTED,
            **labels(where),
            bundle=source.bundle,
            into=scope,
            published=made.bundle,
            entries=list(entries)[:20],
            by=administrator(),
        )
    words = f"published as {made.bundle}" if made.bundle else f"nothing to do: {scope} has all of these entries"
    answer(words, made._asdict(), as_json=as_json)
    if not made.bundle:
        raise click.exceptions.Exit(NO)


def find(bundles: Sequence[Bundle], name: str) -> Bundle:
    """Return the bundle with an id, or with a prefix of it or of its hash. Exits with 1 unless exactly one fits."""
    exact = [bundle for bundle in bundles if bundle.bundle == name]
    fitting = exact or [bundle for bundle in bundles if len(name) >= SHORTEST and _begins(bundle.bundle, name)]
    if len(fitting) != 1:
        warn(f"there is no bundle {name}" if not fitting else f"{name}: more than one bundle; give more of its id")
        raise click.exceptions.Exit(NO)
    return fitting[0]


def _begins(bundle: str, prefix: str) -> bool:
    return bundle.startswith(prefix) or bundle.partition("-")[2].startswith(prefix)


def _chosen(work: StoreMaintenance, only: NamespaceFilter, names: Sequence[str]) -> list[Bundle]:
    """Return the bundles that the options select: those with the given names, or all."""
    bundles = list(work.bundles())
    return only.select(bundles, {find(bundles, name).bundle for name in names})


def _bytes(files: Mapping[str, File]) -> int:
    return sum(file.size for file in files.values())


def _first_in(manifest: Manifest, entry: str) -> str | None:
    """Return the bundle that had an entry first; None if that is this one."""
    return (manifest.origins[entry].bundle or None) if entry in manifest.origins else None


def _as_json(manifest: Manifest) -> dict[str, object]:
    origins = {entry: origin._asdict() for entry, origin in manifest.origins.items()}
    return {**manifest._asdict(), "producer": manifest.producer._asdict(), "origins": origins}


def tell_counts(report: StoreReport, as_json: bool) -> None:
    """Print what was done in the store, for people as one line."""
    done = [f"{count} {name}" for name, count in report._asdict().items() if count]
    answer(", ".join(done) or "nothing to do", report._asdict(), as_json=as_json)


def _tell_failures(session: Session) -> bool:
    """Name on stderr what failed while the rest was done; return whether anything did."""
    for failure in session.failures:
        warn(str(failure))
    return bool(session.failures)


def administrator() -> str:
    """Return who runs the command: sudo's user, else root. Informative only, because it comes from the environment."""
    return os.environ.get("SUDO_USER") or "root"
