"""How an importer starts its programs, and how it asks a registry again.

Run by root, each is alone: as the import account, in namespaces of its own, with no network or the one way out that
outlet.py makes. Run by a user for himself (own_scope.py), it is his own process as any other: there is nobody to be
protected from it.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TypeVar

from warmstart.host import process
from warmstart.host.deadline import Deadline
from warmstart.host.identity import Identity
from warmstart.images.importers import egress
from warmstart.images.importers.base import RedirectRefused, RegistryUnreachable
from warmstart.images.importers.destinations import Destinations, Reach
from warmstart.images.measured import Exceeded, Watch
from warmstart.images.reference import Reference
from warmstart.images.scratch import ImageTooLarge, Scratch

PRLIMIT = "/usr/bin/prlimit"
LARGEST_FILE = 256 << 30  # bytes; of any single file that an import writes
PAUSES_S = (0.5, 2.0)  # before the second and the third attempt, each up to half longer
_T = TypeVar("_T")


def run(
    argv: Sequence[str],
    *,
    reference: Reference,
    scratch: Scratch,
    deadline: Deadline,
    identity: Identity,
    env: Mapping[str, str],
    reach: Reach | None = None,
    capabilities: Sequence[str] = (),
) -> process.CompletedProgram:
    """Run a program of an importer in its scratch; with `reach` it has the registry, and what that names.

    Raises `ImageTooLarge`, and `RedirectRefused` for a program that failed when it was refused a way.
    """
    watch = None if scratch.is_sized else Watch(scratch.fd, scratch.caps)
    limited = [PRLIMIT, f"--fsize={LARGEST_FILE}", "--core=0", "--", *argv]
    common = partial(_start(identity, capabilities), limited, deadline=deadline, cwd=scratch.path, watch=watch)
    try:
        if reach is None or not _is_alone(identity):
            ended = common(env=env)
        else:
            ended = _with_egress(common, env, identity, reference, reach)
        if watch is not None:
            watch.look()  # what it wrote since the last time
    except Exceeded as error:
        raise ImageTooLarge.of(reference.canonical(), scratch.caps) from error
    return ended


def _is_alone(identity: Identity) -> bool:
    return os.geteuid() != identity.uid


def _start(identity: Identity, capabilities: Sequence[str]) -> Callable[..., process.CompletedProgram]:
    if _is_alone(identity):
        return partial(process.run_alone, identity=identity, capabilities=capabilities)
    return process.run


def _with_egress(
    start: Callable[..., process.CompletedProgram],
    env: Mapping[str, str],
    identity: Identity,
    reference: Reference,
    reach: Reach,
) -> process.CompletedProgram:
    with egress.opened(identity, Destinations.of(reference, reach)) as way:
        ended = start(env={**env, **way.environment}, namespace=way.namespace)
        if ended.status != 0 and (problem := way.refused()):
            raise RedirectRefused(image=reference.canonical(), problem=problem)
        return ended


def patiently(attempt: Callable[[], _T], deadline: Deadline, pauses: Sequence[float]) -> _T:
    """Return what `attempt` returns, tried again after `RegistryUnreachable` and a pause; seconds."""
    for pause in pauses:
        try:
            return attempt()
        except RegistryUnreachable:
            # S311: spreads nodes that were refused together; no secret
            spread = pause * (1 + random.random() / 2)  # noqa: S311
            if deadline.left() <= spread:
                raise
            time.sleep(spread)
    return attempt()
