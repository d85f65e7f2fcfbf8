"""Directories of which an account, or the site, has one copy by a rule, in the form that hooks read.

Each rule may list some under the key of a wing. Hot path of jobs that ask for one.
"""

from __future__ import annotations

from warmstart.host import wire
from warmstart.lean import TYPE_CHECKING, NamedTuple, Sequence, fnmatchcase
from warmstart.policy.keys import Users
from warmstart.policy.match import scope_of

if TYPE_CHECKING:
    from warmstart.job import Job
    from warmstart.policy.keys import Policy
    from warmstart.policy.match import Grant

PathGlob = str
SharedScope = str


def is_below(path: str, directories: Sequence[str]) -> bool:
    """Return whether a path without links is below one of some directories."""
    return any(path.startswith(f"{directory}/") for directory in directories)


class SharedPath(NamedTuple):
    """Directories with one copy for many."""

    path: PathGlob
    """The directory's path without links, below one of the section's `prefixes`; `*` stands for any part of a name:
    `/sw/envs/*`."""
    owners: Users
    """Whose files such a directory may have, besides root's."""
    scope: SharedScope  # of what a job is granted, a directory of the store
    """Whose one copy it is: each account's, which needs `trust.account: enforced`, or the site's."""
    rule: str = ""

    @property
    def uids(self) -> list[int]:
        """The uids of the owners."""
        return sorted({owner.uid for owner in self.owners})


def granted(policy: Policy, job: Job, grant: Grant, key: str) -> tuple[SharedPath, ...]:
    """Return what a job shares with others by a wing's `key`; of those that cover a path the last one counts."""
    found = [item for of_rule in grant.own.get(key, ()) for item in wire.decode(list[SharedPath], of_rule)]
    scopes = (scope_of(policy, item.scope, job) for item in found)
    return tuple(item._replace(scope=scope) for item, scope in zip(found, scopes, strict=True) if scope)


def covering(path: str, shared: Sequence[SharedPath]) -> SharedPath | None:
    """Return the last of these that a path without links is one of."""
    return next((item for item in reversed(shared) if _fits(item.path, path)), None)


def _fits(glob: str, path: str) -> bool:
    globs, names = glob.split("/"), path.split("/")
    return len(globs) == len(names) and all(map(fnmatchcase, names, globs))
