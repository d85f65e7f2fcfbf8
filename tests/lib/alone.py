"""Programs that root runs in namespaces of their own, run here without them and as whoever runs the tests."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from warmstart.host import process
from warmstart.host.deadline import Deadline
from warmstart.host.identity import Identity
from warmstart.host.process import CompletedProgram


def run_alone(
    argv: Sequence[str],
    *,
    deadline: Deadline,
    identity: Identity,
    env: Mapping[str, str],
    cwd: str,
    keep: Sequence[int] = (),
    watch: Callable[[], None] | None = None,
    real_uid: int | None = None,
) -> CompletedProgram:
    """Stand in for `process.run_alone`, which only root can call. Nobody but root can give it another real uid."""
    del real_uid
    return process.run(argv, deadline=deadline, identity=identity, env=env, cwd=cwd, keep=keep, watch=watch)
