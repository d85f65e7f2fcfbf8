"""What must be gone at the end of a load run."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from pathlib import Path

from tests.lib import processes
from tests.lib.accounts import ALICE, BOB, IMPORT, STORE, VALIDATE
from tests.lib.processes import wait_until
from tests.lib.site import Site
from tests.lib.teardown import mounts_below

LOCKS = ".locks"  # a directory whose files are never removed


def left(site: Site, mounted: set[str]) -> list[str]:
    """Return what is left though every job has ended and maintenance has run: one line each, none if all is well.

    `mounted` is what was mounted before the first job.
    """
    found = [f"left: {path}" for path in site.leftovers()]
    found += [f"left: {path}" for name in ("*/ports/*", "*/*/queue/*/*") for path in site.runtime("").glob(name)]
    found += [f"left: {path}" for path in unfinished(site.store)]
    found += [f"mounted: {target}" for target in mounts_below(site.cluster.base) if target not in mounted]
    # The last process of a mount namespace holds its mounts, and the kernel frees their loop devices soon after.
    for what, held in (("process", processes_of_accounts), ("loop device", loops)):
        try:
            wait_until(f"the end of each {what}", partial(_none, held, site), 60)
        except TimeoutError:
            found += [f"{what}: {name}" for name in held(site)]
    return found


def _none(held: Callable[[Site], list[str]], site: Site) -> bool:
    return not held(site)


def loops(site: Site) -> list[str]:
    """Return the loop devices whose file is below the cluster's directory, removed or not."""
    found = []
    for path in Path("/sys/block").glob("loop*/loop/backing_file"):
        try:
            file = path.read_text()
        except OSError:  # detached meanwhile
            continue
        found += [path.parts[3]] if file.startswith(f"{site.cluster.base}/") else []
    return found


def processes_of_accounts(site: Site) -> list[str]:
    """Return the processes of this installation, and those of job users and service accounts below its directory."""
    base = str(site.cluster.base).encode()
    uids = {site.cluster.account(name).uid for name in (ALICE, BOB, STORE, IMPORT, VALIDATE)}
    programs = f"{site.cluster.prefix}/libexec/".encode()
    found = []
    for pid in processes.parents():
        words = processes.arguments(pid)
        of_hook = any(word.startswith(programs) for word in words)
        try:
            here = uid_of(pid) in uids and os.readlink(f"/proc/{pid}/cwd").encode().startswith(base)
        except OSError:
            here = False
        if of_hook or here:
            found.append(f"{pid} {b' '.join(words).decode(errors='replace')}")
    return found


def uid_of(pid: int) -> int:
    """Return a process's effective uid, -1 if it is gone. Its /proc directory is root's once it has changed its uid."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except (FileNotFoundError, ProcessLookupError):
        return -1
    return next(int(line.split()[2]) for line in lines if line.startswith("Uid:"))


def unfinished(store: Path) -> list[Path]:
    """Return what is no part of a store that nobody works on: work in progress, halves of bundles and images."""
    files = [path for path in store.rglob("*") if not path.is_dir()]
    whole = {path.with_suffix("") for path in files if path.suffix == ".json"}
    return [
        path
        for path in files
        if any(part.startswith(".") for part in path.relative_to(store).parts if part != LOCKS)
        or path.suffix == ".producer"
        or (path.suffix == ".sqsh" and path.with_suffix("") not in whole)
    ]
