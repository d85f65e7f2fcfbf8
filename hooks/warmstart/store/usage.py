"""How much a scope holds, and how much it may: asked when something is published, held exactly by maintenance (`gc`).

Nothing is written down about it: a sum that is kept beside the bundles would be wrong after the first publisher that
died. A scope has few namespaces, and compaction keeps their bundles few.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress

from warmstart.errors import UserError
from warmstart.host.files import opened_dir
from warmstart.policy.compiled import Maintenance
from warmstart.store.layout import ARTIFACTS, BUNDLE, is_bundle_id, is_component


class QuotaExceeded(UserError):
    """The scope has what it may have; maintenance makes room by removing what was not used for longest."""

    code = "cache-quota-exceeded"
    template = "scope {scope} has {used} bytes of the {quota} that it may have; {more} more are not taken"
    hint = "`warmstart maintain --store` makes room; raise maintenance.per_user, per_account or per_site if it is usual"


def quota(scope: str, rules: Maintenance) -> int:
    """Return how many bytes of bundles a scope (its directory's name) may have."""
    kind = scope.partition("-")[0]
    return {"user": rules.per_user, "account": rules.per_account}.get(kind, rules.per_site)


def check(store: str, scope: str, more: int, most: int) -> None:
    """Raise `QuotaExceeded` where `more` bytes would take a scope beyond `most`; `OSError`.

    Two that publish at the same moment may both be let in.
    """
    used = 0
    for size in _sizes(os.path.join(store, ARTIFACTS, scope)):
        used += size
        if used + more > most:
            raise QuotaExceeded(scope=scope, used=used, quota=most, more=more)
    if more > most:
        raise QuotaExceeded(scope=scope, used=used, quota=most, more=more)


def _sizes(path: str) -> Iterator[int]:
    """Yield the sizes of a scope's bundles; what goes meanwhile, or is no name of ours, does not count."""
    for profile in _components(path):
        for name in _components(os.path.join(path, profile)):
            with suppress(FileNotFoundError, NotADirectoryError), opened_dir(os.path.join(path, profile, name)) as fd:
                for file in os.listdir(fd):
                    if file.endswith(BUNDLE) and is_bundle_id(file.removesuffix(BUNDLE)):
                        with suppress(FileNotFoundError):
                            yield os.stat(file, dir_fd=fd, follow_symlinks=False).st_size


def _components(path: str) -> list[str]:
    try:
        with opened_dir(path) as fd:
            return [name for name in os.listdir(fd) if is_component(name)]
    except (FileNotFoundError, NotADirectoryError):
        return []
