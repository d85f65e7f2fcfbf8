"""What an observed job would read of its tree: whether the store has a copy of it as it is now."""

from __future__ import annotations

from warmstart.entry.observe import Observed
from warmstart.errors import WarmstartError
from warmstart.host.identity import Identity
from warmstart.wings.trees import events, step
from warmstart.wings.trees.client import TreeClient
from warmstart.wings.trees.offered import WORD, offered
from warmstart.wings.trees.place import facts_of, home_of, place_of


def look(observed: Observed) -> None:
    """Audit the tree that the job asks for, if this node could show it a copy. Looks with the rights of its user."""
    hook, grant, requested = observed.hook, observed.grant, observed.planned.requested
    if WORD not in requested.words:
        return
    policy, job, store = hook.policy, hook.job, observed.store
    options = step.options_of(policy, job, grant, requested)
    if step.why_not(policy):
        return
    path, name, size, reason = options.tree, "", 0, ""
    try:
        with TreeClient(Identity(job.user, job.uid, job.gid), options.tree) as client:
            seen = client.look(offered(policy).prefixes, options.marker, observed.deadline, options.shared)
        home = home_of(seen.path, options.shared, options.scope)
        where = place_of(store.path, home.scope, facts_of(seen, home.shared))
        path, name = seen.path, where.name
        offers = store.offers([home.scope], where.profile, name, observed.deadline).offers
        size = offers[0].size if offers else 0
    except WarmstartError as error:
        reason = error.code
    hook.audit.emit(
        events.TREE_OBSERVED, tree=path, namespace=name, found=size > 0, bytes=size, head=observed.head, reason=reason
    )
