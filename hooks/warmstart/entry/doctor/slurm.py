"""slurm.conf: the hooks are this installation's, and Slurm gives them the time that the policy counts on.

Facts: packaging/slurm/README.md, slurm.conf(5). Defaults are those of Slurm 22.05 and later.
"""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Callable, Iterator
from typing import NamedTuple

from warmstart.entry import epilog, prolog
from warmstart.entry.doctor.finding import ADVICE, CRITICAL, OK, UNKNOWN, WRONG, Finding
from warmstart.entry.doctor.slurm_conf import SlurmConf
from warmstart.host.files import read_small
from warmstart.paths import Installation
from warmstart.policy.compiled import Policy

SLURMD_TIMEOUT = 300
BATCH_START_TIMEOUT = 10
LARGEST_SCRIPT = 1 << 20
HIDDEN = ("/tmp", "/dev/shm")
NO_POLICY = Finding(UNKNOWN, "the policy's budgets are not known", "mend the policy first")


class Slurm(NamedTuple):
    """slurm.conf, and the installation and policy that it should fit."""

    conf: SlurmConf
    installation: Installation
    policy: Policy | None

    def hook(self, name: str) -> str:
        """Return the path of one of this installation's hooks."""
        return f"{self.installation.prefix}/libexec/warmstart/{name}"


def _runs(key: str, name: str, cost: str) -> Callable[[Slurm], Iterator[Finding]]:
    def check(slurm: Slurm) -> Iterator[Finding]:
        ours, values = slurm.hook(name), slurm.conf.all(key)
        scripts = [found for value in values for found in (glob.glob(value) if _is_glob(value) else [value])]
        globs = [value for value in values if _is_glob(value)]
        empty = [value for value in globs if not glob.glob(value)]
        if empty:
            yield Finding(CRITICAL, f"{key}={empty[0]} matches nothing: that drains the node", f"{key}={ours}")
        elif not any(is_ours(script, ours) for script in scripts):
            is_now = ", ".join(values) or "not set"
            yield Finding(WRONG, f"{key} is {is_now}, and does not run {ours}: {cost}", f"{key}={ours}")
        elif not os.access(ours, os.X_OK):
            yield Finding(CRITICAL, f"{key}: {ours} is missing, or can't be executed", "make install")
        elif globs:
            found = (
                f"{key}={globs[0]} runs in reverse order, stops at the first failure, and drains the node when empty"
            )
            yield Finding(ADVICE, found, "name one script that runs both, yours first")
        else:
            yield Finding(OK, f"{key} runs {ours}")

    return check


def hook_places(slurm: Slurm) -> Iterator[Finding]:
    """Under job_container/tmpfs a job sees no /tmp or /dev/shm of the node; and anybody can take a name there."""
    values = [value for key in ("Prolog", "Epilog", "TaskProlog") for value in slurm.conf.all(key)]
    bad = [value for value in values if _is_below(value, HIDDEN)]
    if bad:
        found = f"{', '.join(bad)}: jobs can't see it under job_container/tmpfs, and others may put it there"
        yield Finding(WRONG, found, "install under another prefix")
    else:
        yield Finding(OK, "no hook lies below /tmp or /dev/shm")


def flags(slurm: Slurm) -> Iterator[Finding]:
    """When the prolog runs, and who waits for it."""
    words = slurm.conf.words("PrologFlags")
    missing = [word for word in ("Alloc", "DeferBatch") if word.lower() not in words]
    if missing:
        found = (
            f"PrologFlags lacks {' and '.join(missing)}: steps that reach a node still in its prolog fail after 20 s"
        )
        yield Finding(WRONG, found, "PrologFlags=Alloc,DeferBatch (and your others)")
    if "nohold" in words:
        yield Finding(
            WRONG, "PrologFlags has NoHold: interactive steps start before the prolog is done", "leave it out"
        )
    if "runinjob" in words:
        found = (
            "PrologFlags has RunInJob, which was not tried with warmstart: mounts of the prolog may not reach the job"
        )
        yield Finding(WRONG, found, "leave it out")
    if "serial" in words:
        yield Finding(ADVICE, "PrologFlags has Serial: jobs of a node wait for each other's images", "leave it out")
    if not missing and not words & {"nohold", "runinjob", "serial"}:
        yield Finding(OK, f"PrologFlags={slurm.conf.last('PrologFlags')}")


def _fits(hook: str, budget: Callable[[Policy], float], keys: str) -> Callable[[Slurm], Iterator[Finding]]:
    def check(slurm: Slurm) -> Iterator[Finding]:
        if slurm.policy is None:
            yield NO_POLICY
            return
        limit, needed = _limit(slurm.conf, hook), budget(slurm.policy)
        longest = slurm.conf.seconds("SlurmdTimeout", SLURMD_TIMEOUT) or float("inf")  # 0: never set DOWN
        if limit is None:
            found = f"{hook}s have no timeout: a hung file system holds the node for ever"
            yield Finding(WRONG, found, f"PrologEpilogTimeout above {needed:.0f} and below {longest:.0f}")
        elif limit <= needed:
            found = f"Slurm kills a {hook} after {limit} s, before its budget of {needed:.0f} s ({keys}) ends"
            yield Finding(WRONG, found, f"PrologEpilogTimeout above {needed:.0f}, or smaller budgets in the policy")
        elif limit >= longest:
            found = f"a {hook} may take {limit} s, SlurmdTimeout is {longest:.0f}: a reconfigure may set the node DOWN"
            yield Finding(WRONG, found, "PrologEpilogTimeout below SlurmdTimeout")
        else:
            yield Finding(OK, f"{needed:.0f} s ({keys}) < {limit} s < SlurmdTimeout")

    return check


def batch_start(slurm: Slurm) -> Iterator[Finding]:
    """Compare with the prolog's limit: what is in its prolog for longer slurmctld takes for lost, and requeues."""
    start, limit = slurm.conf.seconds("BatchStartTimeout", BATCH_START_TIMEOUT), _limit(slurm.conf, "prolog")
    if limit is None:
        yield Finding(
            WRONG, "the prolog has no timeout, so no BatchStartTimeout is long enough", "PrologEpilogTimeout=280"
        )
    elif start <= limit:
        found = f"BatchStartTimeout is {start} s, a prolog may take {limit}: a reconfigure meanwhile requeues its job"
        yield Finding(WRONG, found, f"BatchStartTimeout above {limit}")
    else:
        yield Finding(OK, f"BatchStartTimeout is {start} s, the prolog's limit {limit}")


def nohold(slurm: Slurm) -> Iterator[Finding]:
    """With it, one job whose prolog always fails drains node after node."""
    if "nohold_on_prolog_fail" in slurm.conf.words("SchedulerParameters"):
        found = "SchedulerParameters has nohold_on_prolog_fail: one bad job drains node after node"
        yield Finding(WRONG, found, "leave it out")
    else:
        yield Finding(OK, "jobs are held when their prolog fails")


def _limit(conf: SlurmConf, hook: str) -> int | None:
    """Return a hook's timeout in seconds; None: none. 25.05 and later have one for each hook, too."""
    for key in (f"{hook}Timeout", "PrologEpilogTimeout"):
        if 0 < (seconds := conf.seconds(key, 0)) < 65534:  # INFINITE and NO_VAL of 16 bits
            return seconds
    return None


def _is_glob(value: str) -> bool:
    return bool(re.search(r"[*?\[]", value))


def _is_below(path: str, directories: tuple[str, ...]) -> bool:
    return any(f"{path}/".startswith(f"{directory}/") for directory in directories)


def is_ours(script: str, ours: str) -> bool:
    """Tell whether a script is our hook, or a wrapper of the site's that names it."""
    if os.path.realpath(script) == os.path.realpath(ours):
        return True
    try:
        return ours.encode() in read_small(os.path.realpath(script), LARGEST_SCRIPT)
    except OSError:
        return False


def _prolog_budget(policy: Policy) -> float:
    return policy.images.wait + policy.seed.fetch_budget + prolog.SECONDS_BESIDES


def _epilog_budget(policy: Policy) -> float:
    return policy.harvest.budget + epilog.SECONDS_BESIDES


CHECKS = {
    "slurm.prolog": _runs("Prolog", "prolog", "nothing is prepared"),
    "slurm.epilog": _runs("Epilog", "epilog", "nothing is harvested, and workspaces stay on the node"),
    "slurm.hook-places": hook_places,
    "slurm.prolog-flags": flags,
    "slurm.prolog-timeout": _fits("prolog", _prolog_budget, "images.wait, seed.fetch_budget, 20 s"),
    "slurm.epilog-timeout": _fits("epilog", _epilog_budget, "harvest.budget, 30 s"),
    "slurm.batch-start": batch_start,
    "slurm.nohold": nohold,
}
