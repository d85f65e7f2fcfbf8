"""`warmstart cache`: list, show, remove, compact and promote the bundles in the store.

Root only: only the store's owner can read or write the store, and root's `StoreClient` runs as that owner. Every change
is audited.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import NamedTuple

import click

from warmstart.audit import events
from warmstart.audit.line import visible
from warmstart.audit.query import epoch
from warmstart.caches.store import bundles
from warmstart.caches.store.gc import Bundle, What
from warmstart.caches.store.layout import Namespace
from warmstart.cli.audit import moment
from warmstart.cli.output import (
    UNUSABLE,
    Column,
    answer,
    fail,
    json_option,
    rfc3339,
    show_fields,
    show_json,
    show_rows,
    show_table,
    size,
    warn,
)
from warmstart.errors import PolicyError, WarmstartError
from warmstart.images.store import eviction
from warmstart.images.store.client import ImageStoreClient
from warmstart.maintenance import repack
from warmstart.maintenance.store import StoreReport, bundle_deadline, labels, locked, survey
from warmstart.paths import Installation
from warmstart.policy.current import current_policy
from warmstart.profiles.contract import FILES
from warmstart.session import Session, open_session, require_root, store_deadline
from warmstart.store.client import StoreClient

NO = 1
SHORTEST = 6  # characters of a bundle's id, which is the hash of its file
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


@contextmanager
def store_reading(installation: Installation, command: str = "cache") -> Iterator[StoreClient]:
    """Open the store for reading, without a session's audit. Needs root. Prints an error and exits with status 2."""
    try:
        require_root(command)
        policy = current_policy(installation).policy
        yield StoreClient.of(policy, f"cli-{os.getpid()}")
    except (PolicyError, WarmstartError) as error:
        fail(error, error.hint)


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
    """List and clean the caches in the store. For root."""


@cache.command("list")
@filter_options
@click.option("--user", help="Only bundles that jobs of this user made, by name.")
@json_option
@click.pass_obj
def list_bundles(installation: Installation, /, user: str | None, as_json: bool, **options: str | None) -> None:
    """List bundles, the most recently used last. `id` is enough of a bundle's hash to name it by.

    Exit status: 0 listed; 1 there are none; 2 not root, or the store fails.
    """
    only, failures = NamespaceFilter(**options), list[WarmstartError]()
    with store_reading(installation) as store:
        found = filter(only.matches, survey(store, failures.append))
        chosen = [bundle for bundle in found if user in (None, bundle.user)]
        images = _images(installation, store, chosen)
    rows = [
        {
            **bundle._asdict(),
            "id": bundle.bundle[:SHORT],
            "namespace": bundle.namespace if as_json else bundle.namespace[:SHORT],
            "image": images.get(bundle.namespace),
        }
        for bundle in sorted(chosen, key=lambda bundle: bundle.used)
    ]
    show_rows(COLUMNS, rows, as_json=as_json)
    for failure in failures:
        warn(str(failure))
    if failures or not chosen:
        raise click.exceptions.Exit(UNUSABLE if failures else NO)


def _images(installation: Installation, store: StoreClient, listed: list[Bundle]) -> dict[str, str]:
    """Return for which image the bundles of each namespace are: its reference, if the store has it; "" if for any."""
    policy, names = current_policy(installation).policy, dict[str, str]()
    images = ImageStoreClient(store.worker, store.path)
    with suppress(WarmstartError):
        for entry in images.run(store_deadline(), eviction.inventory, policy.images.keep.lease):
            names[entry.digest] = entry.reference
    found = dict[str, str]()
    for bundle in listed:
        with suppress(WarmstartError):
            if bundle.namespace not in found:
                facts = store.worker.run(store_deadline(), bundles.facts, bundle.where(store.path))
                digest = facts.get("image", "")
                found[bundle.namespace] = names.get(digest, digest[: len("sha256:") + SHORT])
    return found


@cache.command()
@click.argument("bundle")
@json_option
@click.pass_obj
def show(installation: Installation, bundle: str, as_json: bool) -> None:
    """Show a bundle: whose job made it, the facts of its namespace, its entries, and checksums of declared files.

    BUNDLE is an id, the hash of the bundle's file, or its first six or more characters. Entries that readers have of
    another bundle, or of none, are among them.

    Exit status: 0 shown; 1 no such bundle, or more than one; 2 not root, or the store fails.
    """
    with store_reading(installation) as store:
        found = find(survey(store, lambda _: None), bundle)
        where = found.where(store.path)
        facts = store.worker.run(store_deadline(), bundles.facts, where)
        entries = store.worker.run(bundle_deadline(), bundles.entries, where, found.bundle)
    if as_json:
        show_json({**found._asdict(), "facts": facts, "entries": entries})
        return
    shown = {**found._asdict(), "at": rfc3339(found.at), "used": rfc3339(found.used)}
    show_fields({**shown, **{f"facts.{key}": value for key, value in facts.items()}}.items())
    click.echo()
    rows = [(size(sum(file.size for file in files.values())), len(files), entry) for entry, files in entries.items()]
    show_table(("size", "files", "entry"), rows)
    if found.profile == FILES:  # in the format of `sha256sum --check`
        for files in entries.values():
            for path, file in files.items():
                click.echo(visible(f"{file.sha256}  {path}"))


@cache.command("rm")
@click.argument("names", nargs=-1, metavar="[BUNDLE]...")
@click.option("--user", multiple=True, help="All bundles that jobs of this user made, by name; may be repeated.")
@click.option("--entry", multiple=True, help="This entry of any bundle; may be repeated.")
@click.option("--before", metavar="AGO|DATE", callback=moment, help="All bundles that were published before then.")
@filter_options
@json_option
@click.pass_obj
def remove(  # noqa: PLR0917 - the command's options
    installation: Installation,
    /,
    names: tuple[str, ...],
    user: tuple[str, ...],
    entry: tuple[str, ...],
    before: str | None,
    as_json: bool,
    **options: str | None,
) -> None:
    """Remove bundles, or entries of bundles, from the store. Nodes that have copies seed nobody from them any more.

    Names and options add up; --scope, --profile and --namespace say where. A bundle that maintenance made of several
    is as old as the oldest of them. What jobs publish later can have the same entries again.

    Exit status: 0 removed; 1 there was nothing, or more than one bundle of a name; 2 wrong usage, not root, or the
    store fails or is busy.
    """
    if not (names or user or entry or before):
        raise click.UsageError("name bundles, or give --user, --entry or --before")
    only, reason = NamespaceFilter(**options), f"removed by {administrator()}"
    with admin_session(installation) as session, locked(session) as work:
        entries = 0
        known = [*filter(only.matches, work.bundles())] if names else []
        chosen = {find(known, name).bundle for name in names}
        what = What(sorted(chosen), [*user], [*entry], epoch(before) if before else 0.0)
        for where in filter(only.matches, work.namespaces()):
            with work.isolated():
                entries += work.remove(where, reason, what).entries
    words = f"{work.report.removed} removed" + (f", {entries} entries of others" if entries else "")
    answer(words, {**work.report._asdict(), "entries": entries}, as_json=as_json)
    if _tell_failures(session) or not (work.report.removed or entries):
        raise click.exceptions.Exit(NO)


@cache.command()
@filter_options
@json_option
@click.pass_obj
def compact(installation: Installation, /, as_json: bool, **options: str | None) -> None:
    """Make one bundle of each user's bundles in each namespace.

    Exit status: 0 done; 1 a namespace fails, or some could not be merged; 2 not root, or the store is busy.
    """
    only = NamespaceFilter(**options)
    with admin_session(installation) as session, locked(session) as work:
        for where in filter(only.matches, work.namespaces()):
            with work.isolated():
                if not work.compact(where, fewest=2):
                    break
    tell_counts(work.report, as_json)
    if _tell_failures(session):
        raise click.exceptions.Exit(NO)


@cache.command()
@click.argument("bundle")
@click.argument("entries", nargs=-1, metavar="[ENTRY]...")
@click.option("--to", "scope", required=True, help="The more trusted scope: account-NAME or site.")
@json_option
@click.pass_obj
def promote(installation: Installation, bundle: str, entries: tuple[str, ...], scope: str, as_json: bool) -> None:
    """Copy entries of a bundle (default: all that jobs take of it) into a more trusted scope that lacks them.

    Every job that reads that scope will run them, so check first who made them (`show`). They also stay in their own
    scope, and keep the name of the user whose job made them.

    Exit status: 0 published; 1 that scope has them all, or no such bundle; 2 refused, not root, or the store fails.
    """
    with admin_session(installation) as session, locked(session) as work:
        source = find(work.bundles(), bundle)
        made = repack.promote(session, source, entries, scope, bundle_deadline())
        if made.sha256:
            about = {"bundle": source.bundle, "into": scope, "published": made.sha256, "entries": list(entries)[:20]}
            where = source.where(session.store.path)
            session.audit.emit(events.ENTRY_PROMOTED, **labels(where), **about, by=administrator())
    words = f"published as {made.sha256}" if made.sha256 else f"nothing to do: {scope} has all of these entries"
    answer(words, made._asdict(), as_json=as_json)
    if not made.sha256:
        raise click.exceptions.Exit(NO)


def find(known: Iterable[Bundle], name: str) -> Bundle:
    """Return the bundle whose hash begins so; of one that several namespaces have, the first. Else exits with 1."""
    fitting = {bundle.bundle: bundle for bundle in known if len(name) >= SHORTEST and bundle.bundle.startswith(name)}
    if len(fitting) != 1:
        warn(f"there is no bundle {name}" if not fitting else f"{name}: more than one bundle; give more of its id")
        raise click.exceptions.Exit(NO)
    return next(iter(fitting.values()))


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
