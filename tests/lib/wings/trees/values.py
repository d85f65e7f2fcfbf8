"""Sample values of the wing."""

from __future__ import annotations

from warmstart.host.wire import Json
from warmstart.policy.compiled import Policy
from warmstart.wings.trees.offered import KEY
from warmstart.wings.trees.policy import Trees


def offering(policy: Policy, *prefixes: object, **changes: Json) -> Policy:
    """Return a policy that offers trees below these prefixes, or its own, and with some bounds changed."""
    own: dict[str, Json] = {**(policy.own.get(KEY) or Trees().model_dump(mode="json")), **changes}
    own["prefixes"] = [*map(str, prefixes)] or own["prefixes"]
    wings = (wing._replace(used=True, keep=own["keep"]) if wing.name == KEY else wing for wing in policy.wings)
    return policy._replace(own={**policy.own, KEY: own}, wings=tuple(wings))
