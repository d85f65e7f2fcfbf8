"""The store's bundles, as maintenance and the command line go through them and work on them. Runs as root."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

from warmstart.errors import WarmstartError
from warmstart.host.deadline import Deadline, after
from warmstart.repack.rewrite import RepackSettings
from warmstart.session import Session, store_deadline
from warmstart.store import maintenance
from warmstart.store.client import StoreClient
from warmstart.store.layout import Namespace
from warmstart.store.maintenance import Bundle

STORE_STEP = "store"  # in the audit
BUNDLE_SECONDS = 900.0  # for reading, unpacking, packing and writing one bundle


def repack_settings(session: Session) -> RepackSettings:
    """Return settings for unpacking bundles and validating their entries."""
    return RepackSettings(session.paths.maintenance, session.store, session.policy.validate_user)


def namespace_of(item: Bundle, store: StoreClient) -> Namespace:
    """Return the namespace of a bundle."""
    return Namespace(store.path, item.scope, item.profile, item.namespace)


def audited_survey(session: Session) -> Iterator[Bundle]:
    """Yield the store's bundles as `survey` does. Errors are the session's failures."""
    return survey(session.store, partial(session.failed, STORE_STEP))


def namespaces(store: StoreClient, failed: Callable[[WarmstartError], None]) -> Iterator[Namespace]:
    """Yield the store's namespaces, sorted. `failed` gets the error of each scope that is left out.

    A scope is listed when its turn comes, under a deadline of its own: a store may have tens of thousands of them.
    """
    for scope in store.run(store_deadline(), maintenance.scopes):
        try:
            listed = store.run(store_deadline(), maintenance.namespaces, scope)
        except WarmstartError as error:
            failed(error)
        else:
            yield from listed


def survey(store: StoreClient, failed: Callable[[WarmstartError], None]) -> Iterator[Bundle]:
    """Yield the store's bundles that readers see, scope by scope.

    Each namespace is read when its turn comes, under a deadline of its own, and not kept: a store may have a hundred
    thousand bundles. `failed` gets the error of each scope and namespace that is left out.
    """
    for where in namespaces(store, failed):
        try:
            bundles = store.survey(where, store_deadline())
        except WarmstartError as error:
            failed(error)
        else:
            yield from bundles


def bundle_deadline() -> Deadline:
    """Return the deadline for working on one bundle."""
    return after(BUNDLE_SECONDS)


def labels(where: Namespace) -> dict[str, str]:
    """Return a namespace as the fields of an event."""
    return {"scope": where.scope, "profile": where.profile, "namespace": where.name}
