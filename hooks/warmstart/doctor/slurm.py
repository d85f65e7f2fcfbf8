"""Checks of slurm.conf: it runs this installation's hooks, with timeouts that fit the policy's budgets.

Facts: docs/operations/slurm-settings.md, slurm.conf(5), prolog_str2flags in src/common/read_config.c. Defaults are
those of Slurm 22.05 and later.
"""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import NamedTuple

from warmstart import plan
from warmstart.doctor import namespaces, probe
from warmstart.doctor.finding import ADVICE, CRITICAL, OK, UNKNOWN, WRONG, Finding
from warmstart.doctor.node import AFTER_CHANGES
from warmstart.doctor.slurm_conf import SlurmConf
from warmstart.host import process
from warmstart.host.deadline import after
from warmstart.host.detached import SYSTEMCTL, SYSTEMCTL_S, SYSTEMD
from warmstart.host.files import read_small
from warmstart.images.store.layout import UNPACK_S
from warmstart.paths import Installation
from warmstart.policy.compiled import Policy
from warmstart.slurm import nodes
from warmstart.slurm.facts import SCRIPTS, Access
from warmstart.slurm.slurmctld import QUERY_S, LookUpFailed, Slurmctld

SLURMD_TIMEOUT = 300
BATCH_START_TIMEOUT = 10
NO_LIMIT = 65534  # INFINITE and NO_VAL of 16 bits
FOR_EVER = float("inf")
DROP_IN = "/etc/systemd/system/slurmd.service.d/warmstart.conf"
SHIPPED_S = 270  # what hooks may take by the policy that is shipped
INSTALL = "install warmstart anew"
NO_RUN_IN_JOB = "write Contain in its place"  # which it implies, and that Alloc
MARGIN_S = 10  # between times that depend on each other, in what is advised
SEVERAL_LINES = (24, 5)  # since this release each Prolog= and Epilog= line counts (slurm.conf(5))
HIDDEN = ("/tmp", "/dev/shm")
IMPLY_ALLOC = {"alloc", "contain", "x11", "runinjob", "forcerequeueonfail"}
ALLOC_BY_DEFER_BATCH = (26, 5)  # the first release in which DeferBatch implies Alloc
_STOP = "TimeoutStopUSec"
LARGEST_SCRIPT = 1 << 20
_SECONDS = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "min": 60.0, "h": 3600.0}  # of what systemctl shows (systemd.time(7))
NO_RELEASE = Finding(
    UNKNOWN,
    "this depends on the release of Slurm, which is unknown",
    "correct paths.scontrol in the policy: its slurmd (-V), or it, tells the release",
)
NO_POLICY = Finding(UNKNOWN, "the hooks' budgets are unknown without a policy", "fix the policy first")


class Slurm(NamedTuple):
    """slurm.conf, and the installation and policy that it must match."""

    conf: SlurmConf
    installation: Installation
    policy: Policy | None
    version: tuple[int, ...] | None = None  # of the policy's Slurm: (22, 5, 8); None: unknown

    def hook(self, name: str) -> str:
        """Return the path of one of this installation's hooks."""
        return f"{self.installation.prefix}/libexec/warmstart/{name}"

    def scripts(self, key: str) -> list[str]:
        """Return the paths of a hook's lines: a bare name is one that slurmctld has sent, with slurm.conf."""
        return [self.conf.sibling(value) for value in self.conf.all(key)]

    def counting(self, key: str) -> list[str]:
        """Return the paths of a hook's lines that Slurm runs: before 24.05 the last one."""
        values = self.scripts(key)
        return values if self.version is not None and self.version >= SEVERAL_LINES else values[-1:]


def conf_file(slurm: Slurm) -> Iterator[Finding]:
    """Check for included files that are missing: no daemon of Slurm can start then."""
    if slurm.conf.missing:
        missing = ", ".join(dict.fromkeys(slurm.conf.missing))
        found = f"{slurm.conf.path} includes {missing}: no daemon of Slurm can start with it"
        yield Finding(CRITICAL, found, "correct the line, or put the file there")
    else:
        release = " of Slurm {}.{:02}".format(*slurm.version) if slurm.version else ""
        yield Finding(OK, f"read {slurm.conf.path}{release}")


def _runs(key: str, name: str, cost: str) -> Callable[[Slurm], Iterator[Finding]]:
    def check(slurm: Slurm) -> Iterator[Finding]:
        if slurm.version is None and len(slurm.conf.all(key)) > 1:
            yield NO_RELEASE
            return
        ours, values = slurm.hook(name), slurm.counting(key)
        scripts = [path for value in values for path in (glob.glob(value) if _is_glob(value) else [value])]
        ignored = len(slurm.conf.all(key)) - len(values)
        more = f" (the last of {ignored + 1} lines; before Slurm 24.05 only the last one counts)" if ignored else ""
        globs = [value for value in values if _is_glob(value)]
        empty = [value for value in globs if not glob.glob(value)]
        if empty:
            found = f"{key}={empty[0]} matches no file, which drains the node"
            yield Finding(CRITICAL, found, f"write {ours} in its place")
        elif gone := next((path for path in scripts if not os.access(path, os.X_OK)), ""):
            found = f"{key}: {gone} is missing or not executable, which drains the node{more}"
            yield Finding(CRITICAL, found, INSTALL if gone == ours else f"put it there, or write {ours} in its place")
        elif not any(is_ours(script, ours) for script in scripts):
            yield not_ours(key, scripts, ours, cost, more)
        elif not os.access(ours, os.X_OK):
            yield Finding(CRITICAL, f"{key}: {ours} is missing or not executable", INSTALL)
        elif (times := sum(is_ours(script, ours) for script in scripts)) > 1:
            found = f"{key} names {ours} {times} times, and Slurm runs it as often for each job"
            yield Finding(WRONG, found, f"remove a line, or an include that stands twice, from {slurm.conf.path}")
        elif globs:
            found = f"{key}={globs[0]} runs in reverse order, stops at the first failure, and drains the node if empty"
            yield Finding(ADVICE, found, "use one script that runs yours first, then warmstart's")
        else:
            yield Finding(OK, f"{key} runs {ours}")

    return check


def not_ours(key: str, scripts: list[str], ours: str, cost: str, more: str = "") -> Finding:
    """Return what Slurm runs in place of a hook, which costs that, and what to do; a script of the site's own stays."""
    found = f"{key} is {', '.join(scripts) or 'not set'}{more} and does not run {ours}: {cost}"
    if other := next(filter(None, (other_installation(script, ours) for script in scripts)), ""):
        found = f"{key} is {', '.join(scripts)}{more}, the hook of another installation, {other}: what jobs get is its"
        return Finding(WRONG, found, f"`{other}/bin/warmstart doctor` judges that one; for this one name {ours}")
    well = f"let {scripts[-1]} call it as its last command, `exec {ours}`, or with `|| exit $?`" if scripts else ""
    return Finding(WRONG, found, well or f"set {key}={ours}")


def hook_places(slurm: Slurm) -> Iterator[Finding]:
    """Check who can change the hooks, scripts around them included, and that jobs can see them.

    job_container/tmpfs hides what is below /tmp and /dev/shm, where any user can write.
    """
    values = [value for key in ("Prolog", "Epilog", "TaskProlog") for value in slurm.scripts(key)]
    bad = [value for value in values if is_below(value, HIDDEN)]
    weak = probe.changeable([path for value in values for path in (glob.glob(value) if _is_glob(value) else [value])])
    if weak:
        found = f"others than root can change what root runs for each job: {'; '.join(map(str, weak))}"
        yield Finding(CRITICAL, found, probe.closing(weak) + AFTER_CHANGES)
    if bad:
        found = f"{', '.join(bad)}: hidden from jobs by job_container/tmpfs, and any user could create it"
        yield Finding(WRONG, found, "put yours elsewhere, and install warmstart under another prefix")
    if not weak and not bad:
        yield Finding(OK, "only root can change the hooks, and none is below /tmp or /dev/shm")


def flags(slurm: Slurm) -> Iterator[Finding]:
    """Check PrologFlags: when the prolog runs, and what waits for it."""
    words = slurm.conf.words("PrologFlags")
    missing = [] if words & IMPLY_ALLOC or _defers_and_allocates(slurm, words) else ["Alloc"]
    missing += [] if "deferbatch" in words else ["DeferBatch"]
    if missing == ["Alloc"] and slurm.version is None:
        yield NO_RELEASE
    elif missing:
        now = filter(None, [slurm.conf.last("PrologFlags")])
        found = (
            f"PrologFlags lacks {' and '.join(missing)}: steps that reach a node still in its prolog fail after 20 s"
        )
        cost = (
            "a job on several nodes is cold"
            if "Alloc" in missing
            else "a batch job begins before its nodes have agreed what to show it"
        )
        yield Finding(WRONG, found + _together(slurm, cost), f"set PrologFlags={','.join([*now, *missing])}")
    if "nohold" in words:
        found = "PrologFlags has NoHold: interactive steps start before the prolog ends"
        cost = "nor does DeferBatch hold a batch job before its nodes have agreed what to show it"
        yield Finding(WRONG, found + _together(slurm, cost), "remove it")
    if "runinjob" in words:
        yield _run_in_job(slurm)
    if "serial" in words:
        yield Finding(ADVICE, "PrologFlags has Serial: jobs on a node wait for each other's images", "remove it")
    if not missing and not words & {"nohold", "runinjob", "serial"}:
        yield Finding(OK, f"PrologFlags={slurm.conf.last('PrologFlags')}")


def _together(slurm: Slurm, cost: str) -> str:
    """Return what the flags cost jobs whose nodes agree on what they show them; "" if there can be none."""
    places = slurm.conf.all("Nodes") if slurm.policy is not None else []
    several = any(place.lower() == "all" or nodes.has_several(place) for place in places)
    return f"; {cost}" if several else ""


def _run_in_job(slurm: Slurm) -> Finding:
    """Return what RunInJob costs (seen on 26.05)."""
    if kind := namespaces.kind(slurm.conf):
        found = (
            f"PrologFlags has RunInJob: {kind} makes a job's namespace before the prolog, so no seeded cache is in it"
        )
        return Finding(WRONG, found, NO_RUN_IN_JOB)
    found = "PrologFlags has RunInJob: the hooks' own memory is charged to the job"
    return Finding(ADVICE, found, NO_RUN_IN_JOB)


def _defers_and_allocates(slurm: Slurm, words: set[str]) -> bool:
    return "deferbatch" in words and (slurm.version or (0, 0)) >= ALLOC_BY_DEFER_BATCH


def _fits(hook: str, budget: Callable[[Policy], float], keys: str) -> Callable[[Slurm], Iterator[Finding]]:
    def check(slurm: Slurm) -> Iterator[Finding]:
        if slurm.policy is None:
            yield NO_POLICY
            return
        limit, needed = _limit(slurm.conf, hook), budget(slurm.policy)
        longest = slurm.conf.seconds("SlurmdTimeout", SLURMD_TIMEOUT) or FOR_EVER  # 0: never set DOWN
        if limit is None:
            found = f"{hook}s have no timeout: a hung file system blocks the node for ever"
            yield Finding(WRONG, found, _agreeing(slurm))
        elif limit <= needed:
            found = f"Slurm kills the {hook} after {limit} s; its budget is {needed:.0f} s ({keys})"
            yield Finding(WRONG, found, f"{_agreeing(slurm)}; or reduce the policy's budgets")
        elif limit >= longest:
            found = f"a {hook} may take {limit} s, SlurmdTimeout is {longest:.0f}: a reconfigure may set the node DOWN"
            yield Finding(WRONG, found, _agreeing(slurm))
        else:
            yield Finding(OK, f"{needed:.0f} s ({keys}) < {limit} s < SlurmdTimeout")

    return check


def _agreeing(slurm: Slurm) -> str:
    """Return what to set so that the times fit the policy and each other; what fits stays as it is."""
    conf, policy = slurm.conf, slurm.policy
    needed = int(max(plan.prolog_budget(policy), plan.epilog_budget(policy))) if policy else SHIPPED_S
    longest = conf.seconds("SlurmdTimeout", SLURMD_TIMEOUT) or FOR_EVER  # 0: never set DOWN
    set_now = {key: conf.seconds(key, 0) for key in ("PrologEpilogTimeout", "PrologTimeout", "EpilogTimeout")}
    limits = {key: seconds for key, seconds in set_now.items() if 0 < seconds < NO_LIMIT}
    times: dict[str, int] = {}
    if None in (_limit(conf, "prolog"), _limit(conf, "epilog")):
        limits["PrologEpilogTimeout"] = times["PrologEpilogTimeout"] = needed + MARGIN_S
    if not all(needed < seconds < longest for seconds in limits.values()):
        times = limits = dict.fromkeys(limits, needed + MARGIN_S)
    limit = max(limits.values())
    if limit >= longest:
        times["SlurmdTimeout"] = limit + MARGIN_S
    if conf.seconds("BatchStartTimeout", BATCH_START_TIMEOUT) <= limit:
        times["BatchStartTimeout"] = limit + MARGIN_S
    return "set " + ", ".join(f"{key}={seconds}" for key, seconds in times.items())


def batch_start(slurm: Slurm) -> Iterator[Finding]:
    """Check BatchStartTimeout against the prolog's timeout: slurmctld requeues jobs whose prolog takes longer."""
    start, limit = slurm.conf.seconds("BatchStartTimeout", BATCH_START_TIMEOUT), _limit(slurm.conf, "prolog")
    if limit is None:
        found = "the prolog has no timeout, so no BatchStartTimeout is long enough"
        yield Finding(WRONG, found, _agreeing(slurm))
    elif start <= limit:
        found = f"BatchStartTimeout is {start} s, a prolog may take {limit} s: a reconfigure meanwhile requeues its job"
        yield Finding(WRONG, found, _agreeing(slurm))
    else:
        yield Finding(OK, f"BatchStartTimeout is {start} s, the prolog's timeout is {limit} s")


def slurmd_stop(slurm: Slurm) -> Iterator[Finding]:
    """Check that systemd lets slurmd finish a hook: killed in a prolog, slurmd leaves its job there for ever."""
    if not os.path.isdir(SYSTEMD):
        yield Finding(OK, "systemd does not run here: what else stops slurmd has to let it finish its hooks")
        return
    argv = [SYSTEMCTL, "show", f"--property=ActiveState,{_STOP}", "slurmd.service"]
    done = process.run(argv, deadline=after(SYSTEMCTL_S))
    shown = dict(line.split("=", 1) for line in done.stdout.decode().splitlines() if "=" in line)
    # A number with a unit each, as in "1min 30s"; "infinity" has none.
    parts = re.findall(r"([\d.]+)([a-z]+)", shown.get(_STOP, ""))
    longest = sum(float(number) * _SECONDS.get(unit, FOR_EVER) for number, unit in parts) if parts else FOR_EVER
    limit = max(_limit(slurm.conf, hook) or FOR_EVER for hook in ("prolog", "epilog"))
    if done.status or _STOP not in shown:
        found = f"how long slurmd has to stop: {done.complaint()}"
        yield Finding(UNKNOWN, found, f"see what {' '.join(argv)} says")
    elif shown.get("ActiveState") != "active":
        yield Finding(OK, "systemd runs no slurmd here")
    elif longest == FOR_EVER or longest > limit:
        yield Finding(OK, f"slurmd has {shown[_STOP]} to stop, as long as a hook may take")
    elif limit == FOR_EVER:
        yield Finding(WRONG, "hooks have no timeout, so no TimeoutStopSec of slurmd is long enough", _agreeing(slurm))
    else:
        found = f"slurmd has {shown[_STOP]} to stop, a hook may take {limit:.0f} s: killed, its job waits for ever"
        lines = f"`[Service]` and `TimeoutStopSec={limit + MARGIN_S:.0f}`"
        yield Finding(WRONG, found, f"put the lines {lines} in {DROP_IN}, then `systemctl daemon-reload`")


def running(slurm: Slurm) -> Iterator[Finding]:
    """Check that slurmctld runs the hooks that slurm.conf names: 22.05 takes PrologSlurmctld from a restart only."""
    if slurm.policy is None:
        yield NO_POLICY
        return
    access = Access(slurm.policy.paths.scontrol, slurm.conf.path, slurm.installation.slurm_libraries)
    try:
        configuration = Slurmctld(access).configuration(after(QUERY_S))
    except LookUpFailed as error:
        yield Finding(UNKNOWN, str(error), "run doctor where slurmctld answers")
        return
    runs = {key: [slurm.conf.sibling(path) for path in configuration.scripts[key]] for key in SCRIPTS}
    other = [key for key in SCRIPTS if set(runs[key]) != set(slurm.counting(key))]
    for key in other:
        is_now = ", ".join(runs[key]) or "not set"
        said = ", ".join(slurm.counting(key)) or "not set"
        change = "`scontrol reconfigure`; for slurmctld's own hooks restart slurmctld"
        yield Finding(WRONG, f"in slurmctld {key} is {is_now}, in {slurm.conf.path} {said}", change)
    if not other:
        yield Finding(OK, "slurmctld runs with the hooks of slurm.conf")


def _limit(conf: SlurmConf, hook: str) -> int | None:
    """Return a hook's timeout in seconds, None if it has none. Slurm 25.05 and later also have one per hook."""
    for key in (f"{hook}Timeout", "PrologEpilogTimeout"):
        if 0 < (seconds := conf.seconds(key, 0)) < NO_LIMIT:
            return seconds
    return None


def _is_glob(value: str) -> bool:
    return bool(re.search(r"[*?\[]", value))


def is_below(path: str, directories: tuple[str, ...]) -> bool:
    """Return whether a path is one of these directories, or in one."""
    return any(f"{path}/".startswith(f"{directory.rstrip('/')}/") for directory in directories)


def is_ours(script: str, ours: str) -> bool:
    """Return whether a script is the hook `ours`, or a wrapper that names it."""
    if os.path.realpath(script) == os.path.realpath(ours):
        return True
    try:
        return ours.encode() in read_small(os.path.realpath(script), LARGEST_SCRIPT)
    except OSError:
        return False


def other_installation(script: str, ours: str) -> str:
    """Return the prefix of another installation whose program a script is, or names; "" if there is none."""
    text = script
    with suppress(OSError):
        text += "\n" + read_small(os.path.realpath(script), LARGEST_SCRIPT).decode("utf-8", "replace")
    name = re.escape(os.path.basename(ours))
    return next((prefix for prefix in re.findall(rf"(/[\w./+-]*)/libexec/warmstart/{name}\b", text)), "")


TIMES = {
    "slurm.prolog-timeout": _fits(
        "prolog",
        plan.prolog_budget,
        f"images.wait, seed.fetch_budget, {plan.PROLOG_SECONDS:.0f} s, and {UNPACK_S:.0f} s if images are unpacked",
    ),
    "slurm.epilog-timeout": _fits("epilog", plan.epilog_budget, f"harvest.budget, {plan.EPILOG_SECONDS:.0f} s"),
    "slurm.batch-start": batch_start,
}
CHECKS = {
    "slurm.conf": conf_file,
    "slurm.prolog": _runs("Prolog", "prolog", "nothing is prepared"),
    "slurm.epilog": _runs("Epilog", "epilog", "nothing is harvested, and workspaces stay on the node"),
    "slurm.hook-places": hook_places,
    "slurm.prolog-flags": flags,
    **TIMES,
    "slurm.slurmd-stop": slurmd_stop,
    "slurm.running": running,
}
