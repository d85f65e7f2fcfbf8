"""The policy in force: the compiled one, or the site's files if they have changed since. Hot path.

A broken edit never breaks a job: the last good policy stays in force, and every call tells the error. Hooks keep what
they compile. While the files are broken, each hook compiles them anew, in a tenth of a second: the cause may be outside
of them, such as a missing user. Any number of hooks may do this concurrently: the compiled form is replaced atomically,
and the last writer wins.
"""

from __future__ import annotations

import os
import stat

from warmstart.errors import PolicyError
from warmstart.host import files
from warmstart.lean import NamedTuple, suppress
from warmstart.paths import Installation
from warmstart.policy import keys
from warmstart.policy.keys import Policy


class CurrentPolicy(NamedTuple):
    """The policy that the next hook will use."""

    policy: Policy
    origin: str  # the file from which it was read: the compiled form, or policy.yaml, which is newer
    problem: PolicyError | None  # why newer files are not in force


def current_policy(installation: Installation, *, keep: bool = False) -> CurrentPolicy:
    """Return the policy in force, its `trust` as far as it is proven (`policy.trust`). Ignores the file `off`.

    Writes nothing, unless what is compiled is to be kept, as hooks do. Raises `PolicyError` if there is no valid policy
    at all.
    """
    last = keys.read(installation.compiled_policy)
    if last is not None and keys.is_current(last):
        current = CurrentPolicy(last, installation.compiled_policy, None)
    else:
        current = _compiled(installation, last, keep)
    if current.policy.trust.account == "claimed":
        return current
    from warmstart.policy import trust

    return current._replace(policy=trust.proven(current.policy, installation.enforcement))


def _compiled(installation: Installation, last: Policy | None, keep: bool) -> CurrentPolicy:
    from warmstart.policy import load

    try:
        policy = load.compile_policy(installation.policy)
    except PolicyError as error:
        if last is None:
            raise
        return CurrentPolicy(last, installation.compiled_policy, error)
    if keep:
        with suppress(OSError):  # who is not root, or has a full disk, compiles each time; so does who sees files go
            _keep(installation, policy)
    return CurrentPolicy(policy, installation.policy, None)


def _keep(installation: Installation, policy: Policy) -> None:
    """Write the compiled form, readable for all if all its sources are: the pyxis importer reads it."""
    sources = [os.path.dirname(installation.policy), *(str(known[0]) for known in policy.signature if len(known) > 1)]
    for_all = all(os.stat(path, follow_symlinks=False).st_mode & stat.S_IROTH for path in sources)
    directory, name = os.path.split(installation.compiled_policy)
    files.ensure_path(directory, 0o755)
    with files.opened_dir(directory) as fd:
        files.replace_file(fd, name, keys.encode(policy), 0o644 if for_all else 0o600)
