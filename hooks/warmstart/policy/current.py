"""The policy in force: the compiled one, or the site's files if they have changed since. Hot path.

A broken edit never breaks a job: the last good policy stays in force, and every call tells the error. Hooks keep what
they compile, and remember an error in a file next to it, so that not every hook compiles the broken policy again. After
a minute the policy is compiled again even if unchanged, because the cause may be outside the files, e.g. a missing
user. Any number of hooks may do this concurrently: files are replaced atomically, and the last writer wins.
"""

from __future__ import annotations

import errno
import os
import stat
import time

from warmstart.errors import PolicyError
from warmstart.host import files
from warmstart.host.files import DiskFailed
from warmstart.lean import NamedTuple, dumps
from warmstart.paths import Installation
from warmstart.policy import compiled, trust
from warmstart.policy.compiled import MADE_BY, Policy, Signature

RETRY_S = 60.0


class CurrentPolicy(NamedTuple):
    """The policy that the next hook will use."""

    policy: Policy
    origin: str  # the file from which it was read
    changed: bool  # whether the site's files are newer than the readable compiled form
    problem: PolicyError | DiskFailed | None  # why newer files are not in force, or hooks compile them each time


def current_policy(installation: Installation, *, keep: bool = False) -> CurrentPolicy:
    """Return the policy in force, its `trust` as far as it is proven (`policy.trust`). Ignores the file `off`.

    Writes nothing, unless what is compiled is to be kept, as hooks do. Raises `PolicyError` if there is no valid policy
    at all.
    """
    current = _current(installation, keep)
    return current._replace(policy=trust.proven(current.policy, installation.enforcement))


def hint_for(error: PolicyError) -> str:
    """Return the hint for a policy that could not be read. Users get another one than root."""
    from warmstart.policy.invalid import PolicyUnreadable

    if isinstance(error, PolicyUnreadable) and os.geteuid() != 0:
        return (
            "ask the administrators for the cluster's policy on this host, readable for all; or run the command as root"
        )
    return error.hint


def _current(installation: Installation, keep: bool) -> CurrentPolicy:
    last = compiled.read(installation.compiled_policy)
    if last is not None and compiled.is_current(last):
        return CurrentPolicy(last, installation.compiled_policy, changed=False, problem=None)
    try:
        policy, unsaved = _kept(installation) if keep else (_compile(installation), None)
    except PolicyError as error:
        if last is None:
            raise
        return CurrentPolicy(last, installation.compiled_policy, changed=True, problem=error)
    return CurrentPolicy(policy, installation.policy, changed=last is not None, problem=unsaved)


def _compile(installation: Installation) -> Policy:
    from warmstart.policy import load

    # Other users may compile a policy of their own. Root trusts only root's files.
    return load.compile_policy(installation.policy, owners={0, os.geteuid()})


def _kept(installation: Installation) -> tuple[Policy, DiskFailed | None]:
    """Compile the policy and keep the result, also an error; raise a remembered error instead."""
    from warmstart.policy import source

    signature = source.signature(installation.policy)  # before reading: a file that is repaired meanwhile has another
    if error := _remembered(installation, signature):
        raise error
    try:
        policy = _compile(installation)
    except PolicyError as refused:
        fields = {key: value if isinstance(value, int) else str(value) for key, value in refused.fields.items()}
        # If this cannot be written, the next hook only takes longer.
        refusal = [dumps([MADE_BY, signature]), time.time(), refused.code, fields]
        _write(_rejected(installation), dumps(refusal).encode())
        raise
    mode = _mode(installation, policy.signature)
    return policy, _write(installation.compiled_policy, compiled.encode(policy), mode)


def _mode(installation: Installation, signature: Signature) -> int:
    """Return the compiled form's mode: readable for all if all its sources are. The pyxis importer reads it."""
    paths = [os.path.dirname(installation.policy), *(str(known[0]) for known in signature if len(known) > 1)]
    try:
        for_all = all(os.stat(path, follow_symlinks=False).st_mode & stat.S_IROTH for path in paths)
    except OSError:  # gone meanwhile: the next hook compiles again
        return 0o600
    return 0o644 if for_all else 0o600


def _remembered(installation: Installation, signature: Signature) -> PolicyError | None:
    refusal = compiled.read_own_json(_rejected(installation))
    if not isinstance(refusal, list) or refusal[:1] != [dumps([MADE_BY, signature])]:
        return None
    _, at, code, fields = refusal
    from warmstart.policy.invalid import PolicyInvalid, PolicyUnreadable, PolicyUntrusted

    errors = {cls.code: cls for cls in (PolicyInvalid, PolicyUnreadable, PolicyUntrusted)}
    return errors[code](**fields) if 0 <= time.time() - at < RETRY_S and code in errors else None


def _rejected(installation: Installation) -> str:
    return f"{installation.compiled_policy}.rejected"


def _write(path: str, data: bytes, mode: int = 0o600) -> DiskFailed | None:
    directory, name = os.path.split(path)
    try:
        files.ensure_path(directory, 0o755)
        with files.opened_dir(directory) as fd:
            files.replace_file(fd, name, data, mode)
    except OSError as error:
        if error.errno in (errno.EACCES, errno.EPERM):  # only root can write it; other users compile for themselves
            return None
        return DiskFailed(what=path, problem=os.strerror(error.errno or 0))
    return None
