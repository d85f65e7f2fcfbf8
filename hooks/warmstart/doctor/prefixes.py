"""Check the directories below which a wing's section lets jobs name what they read from copies."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence

from warmstart.doctor.finding import ADVICE, UNKNOWN, WRONG, Finding
from warmstart.doctor.store import LOCAL
from warmstart.errors import WarmstartError
from warmstart.host.deadline import Deadline, after
from warmstart.host.identity import Identity
from warmstart.host.namespaces import mount_of
from warmstart.host.worker import Worker

SECONDS = 5.0  # for each


def faults(section: str, prefixes: Sequence[str]) -> Iterator[Finding]:
    """Yield which of a section's `prefixes` is not there, leads through links, or is on a disk of this node's own."""
    for prefix in prefixes:
        yield from _faults(f"{section}.prefixes: {prefix}", prefix)


def _faults(what: str, prefix: str) -> Iterator[Finding]:
    try:
        real = real_path(prefix, after(SECONDS))
    except PermissionError:
        return  # root may be nobody there, and the jobs' users are not
    except WarmstartError as error:
        yield Finding(UNKNOWN, str(error), "look at the file server, and at the network")
        return
    except OSError as error:
        found = f"{what}: {error.strerror}: no job gets a copy of anything there"
        yield Finding(WRONG, found, "mount the file system, or correct the path")
        return
    mounted = mount_of(real)
    if real != prefix:
        yield Finding(WRONG, f"{what} leads to {real}: no job gets a copy of anything there", f"write {real}")
    elif mounted.kind in LOCAL:
        found = f"{what} is on {mounted.kind} ({mounted.point}), a disk of this node's own"
        yield Finding(ADVICE, found, "leave it out: copies save nothing there")


def real_path(path: str, deadline: Deadline) -> str:
    """Return a path without links, looked up as root. Raises `OSError`, and `WorkerSilent` where it hangs."""
    root = Identity("root", os.geteuid(), os.getegid())
    return Worker(root, f"the file system of {path}").run(deadline, _real_path, path)


def _real_path(path: str) -> str:
    return os.path.realpath(path, strict=True)
