"""Load the current policy: the compiled one, recompiled if the site's files have changed. Hot path.

A broken edit never breaks a job: the last good policy stays in force, and every call returns the error. The error is
remembered in a file next to the compiled form, so that not every hook compiles the broken policy again. After a minute
the policy is compiled again even if unchanged, because the cause may be outside the files, e.g. a missing user. Any
number of hooks may do this concurrently: files are replaced atomically, and the last writer wins.
"""

from __future__ import annotations

import errno
import os
import stat
import time

from warmstart.errors import PolicyError
from warmstart.host import files, wire
from warmstart.lean import NamedTuple, dumps, suppress
from warmstart.paths import Installation
from warmstart.policy import compiled, trust
from warmstart.policy.compiled import MADE_BY, Policy, Signature

RETRY_S = 60.0


class _Refusal(NamedTuple):
    """A remembered error of the site's files."""

    made_by: str
    signature: Signature
    at: float  # epoch seconds
    code: str
    fields: dict[str, str | int]


class PolicyUnsaved(PolicyError):
    """The policy is valid and in force, but its compiled form could not be written."""

    code = "policy-unsaved"
    template = "{path}: {problem}"
    hint = "make the file writable; until then every hook compiles the policy again"


def current(installation: Installation, slurm_conf: str | None = None) -> tuple[Policy, PolicyError | None]:
    """Return the policy in force, and the error of the site's files if they are invalid.

    Its `trust` is what is proven (`policy.trust`). With `slurm_conf` ("" where Slurm finds it) the running
    configuration is read when the policy is compiled. Raises that error if there is no valid policy at all. Ignores the
    file `off`.
    """
    policy, error = _current(installation, slurm_conf)
    return trust.proven(policy, installation.enforcement), error


def _current(installation: Installation, slurm_conf: str | None) -> tuple[Policy, PolicyError | None]:
    policy = compiled.read(installation.compiled_policy)
    if policy is not None and compiled.is_current(policy):
        return policy, None
    signature = _signature(installation)  # before reading: a file that is repaired meanwhile gets another signature
    error = _remembered(installation, signature)
    if error is None:
        try:
            return _compile(installation, slurm_conf)
        except PolicyError as refused:
            error = refused
            _remember(installation, signature, refused)
    if policy is None:
        raise error
    return policy, error


def _compile(installation: Installation, slurm_conf: str | None) -> tuple[Policy, PolicyError | None]:
    from warmstart.policy import load

    # Other users may compile a policy of their own. Root trusts only root's files.
    policy = load.compile_policy(installation.policy, owners={0, os.geteuid()})
    mode = _mode(installation, policy.signature)
    unsaved = _write(installation.compiled_policy, compiled.encode(policy), mode)
    if slurm_conf is not None:
        with suppress(OSError):  # then nothing is proven, and that is said
            trust.remember(policy, installation, slurm_conf)
    return policy, unsaved


def _mode(installation: Installation, signature: Signature) -> int:
    """Return the compiled form's mode: readable for all if all its sources are. The pyxis importer reads it."""
    paths = [os.path.dirname(installation.policy), *(str(known[0]) for known in signature if len(known) > 1)]
    try:
        for_all = all(os.stat(path, follow_symlinks=False).st_mode & stat.S_IROTH for path in paths)
    except OSError:  # gone meanwhile: the next hook compiles again
        return 0o600
    return 0o644 if for_all else 0o600


def _remember(installation: Installation, signature: Signature, error: PolicyError) -> None:
    fields = {key: value if isinstance(value, int) else str(value) for key, value in error.fields.items()}
    refusal = _Refusal(MADE_BY, signature, time.time(), error.code, fields)
    # If this cannot be written, the next hook only takes longer.
    _write(_rejected(installation), dumps(refusal._asdict()).encode())


def _remembered(installation: Installation, signature: Signature) -> PolicyError | None:
    try:
        refusal = wire.from_object(_Refusal, compiled.read_own_json(_rejected(installation)))
    except wire.WireMismatch:
        return None
    if refusal.made_by != MADE_BY or refusal.signature != signature or not 0 <= time.time() - refusal.at < RETRY_S:
        return None
    from warmstart.policy.invalid import PolicyInvalid, PolicyUnreadable, PolicyUntrusted

    for cls in (PolicyInvalid, PolicyUnreadable, PolicyUntrusted):
        if cls.code == refusal.code:
            return cls(**refusal.fields)
    return None


def _rejected(installation: Installation) -> str:
    return f"{installation.compiled_policy}.rejected"


def _signature(installation: Installation) -> Signature:
    from warmstart.policy import source

    return source.signature(installation.policy)


def _write(path: str, data: bytes, mode: int = 0o600) -> PolicyUnsaved | None:
    directory, name = os.path.split(path)
    try:
        files.ensure_path(directory, 0o755)
        with files.opened_dir(directory) as fd:
            files.replace_file(fd, name, data, mode)
    except OSError as error:
        if error.errno in (errno.EACCES, errno.EPERM):  # only root can write it; other users compile for themselves
            return None
        return PolicyUnsaved(path=path, problem=os.strerror(error.errno or 0))
    return None
