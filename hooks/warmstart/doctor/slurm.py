"""Checks of Slurm's settings: it runs this installation's hooks, with timeouts that fit the policy's budgets.

What slurmctld runs with counts (`scontrol show config`, which has all defaults), not what slurm.conf says by now.
Facts: docs/operations/slurm-settings.md, slurm.conf(5), prolog_flags2str in src/common/read_config.c.
"""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Iterator
from contextlib import suppress
from typing import NamedTuple

from warmstart import plan
from warmstart.doctor import permissions, slurm_files
from warmstart.doctor.finding import ADVICE, CRITICAL, UNKNOWN, WRONG, Finding, check
from warmstart.doctor.permissions import AFTER_CHANGES, Place
from warmstart.doctor.slurm_files import Plugin
from warmstart.ending import harvesting
from warmstart.host import process
from warmstart.host.deadline import after
from warmstart.host.detached import SYSTEMCTL, SYSTEMCTL_S, SYSTEMD
from warmstart.host.files import read_small
from warmstart.images.store.layout import UNPACK_S
from warmstart.paths import Installation
from warmstart.policy.keys import Policy
from warmstart.slurm.facts import Settings

NO_LIMIT = 65534  # INFINITE and NO_VAL of 16 bits
FOR_EVER = float("inf")
DROP_IN = "/etc/systemd/system/slurmd.service.d/warmstart.conf"
INSTALL = "install warmstart anew"
MARGIN_S = 10  # between times that depend on each other, in what is advised
HIDDEN = ("/tmp", "/dev/shm")
LARGEST_SCRIPT = 1 << 20
ENROOT = "/etc/enroot"
PLUGIN = "warmstart.so"
PYXIS = "spank_pyxis.so"
_STOP = "TimeoutStopUSec"
_SECONDS = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "min": 60.0, "h": 3600.0}  # of what systemctl shows (systemd.time(7))


class Slurm(NamedTuple):
    """What slurmctld runs with, what this node has of Slurm, and the installation and policy that it must match."""

    settings: Settings
    installation: Installation
    policy: Policy
    version: tuple[int, ...]  # of slurmd here: (22, 5, 8)
    conf: str  # the directory of slurm.conf
    plugins: tuple[Plugin, ...] = ()  # of SPANK, in order
    enroot: str = ENROOT  # its directory

    def hook(self, name: str) -> str:
        """Return the path of one of this installation's hooks."""
        return f"{self.installation.prefix}/libexec/warmstart/{name}"

    def scripts(self, key: str) -> list[str]:
        """Return the paths of a hook's scripts: a bare name is one that slurmctld has sent, with slurm.conf."""
        return [os.path.join(self.conf, value) for value in self.settings.all(key)]

    @property
    def spank(self) -> Plugin | None:
        """The plugin of warmstart, None if it is not loaded."""
        return next((plugin for plugin in self.plugins if plugin.name == PLUGIN), None)

    @property
    def pyxis(self) -> Plugin | None:
        """The plugin of pyxis, None if it is not loaded."""
        return next((plugin for plugin in self.plugins if plugin.name == PYXIS), None)

    @property
    def namespace(self) -> str:
        """The plugin that makes mount namespaces for jobs, `namespace/linux` for example; "" if there is none."""
        plugin = self.settings.one("NamespaceType") or self.settings.one("JobContainerType")
        return "" if "none" in plugin.lower() else plugin

    @property
    def namespaces(self) -> slurm_files.Namespaces:
        """What the file of that plugin says. Raises `OSError` and `PolicyInvalid`."""
        return slurm_files.namespaces(self.namespace, self.conf)


def expanded(scripts: list[str]) -> list[str]:
    """Return the paths of scripts, with the files that patterns among them match."""
    return [path for script in scripts for path in (glob.glob(script) if _is_glob(script) else [script])]


@check("slurm.hooks", critical=True)
def hooks(slurm: Slurm) -> Iterator[Finding]:
    """Check that Slurm runs this installation's hooks, and that only root can change what it runs."""
    yield from _hook(slurm, "Prolog", "prolog", "nothing is prepared")
    yield from _hook(slurm, "Epilog", "epilog", "nothing is harvested, and workspaces stay on the node")
    yield from _task_prolog(slurm)
    scripts = [script for key in ("Prolog", "Epilog", "TaskProlog") for script in slurm.scripts(key)]
    there = [path for path in expanded(scripts) if os.path.exists(path)]
    what = "change what root runs for each job"
    place = Place(what, CRITICAL, there, then=AFTER_CHANGES)
    yield from permissions.told(place, permissions.look(place))
    if hidden := [script for script in scripts if is_below(script, HIDDEN)]:
        found = f"{', '.join(hidden)}: hidden from jobs by job_container/tmpfs, and any user could create it"
        yield Finding(WRONG, found, "put yours elsewhere, and install warmstart under another prefix")


def _hook(slurm: Slurm, key: str, name: str, cost: str) -> Iterator[Finding]:
    ours, values = slurm.hook(name), slurm.scripts(key)
    scripts, globs = expanded(values), [value for value in values if _is_glob(value)]
    drains = "which drains the node"
    if empty := next((value for value in globs if not glob.glob(value)), ""):
        yield Finding(CRITICAL, f"{key}={empty} matches no file, {drains}", f"write {ours} in its place")
    elif gone := next((path for path in scripts if not os.access(path, os.X_OK)), ""):
        change = INSTALL if gone == ours else f"put it there, or write {ours} in its place"
        yield Finding(CRITICAL, f"{key}: {gone} is missing or not executable, {drains}", change)
    elif not any(is_ours(script, ours) for script in scripts):
        yield not_ours(key, scripts, ours, cost)
    elif not os.access(ours, os.X_OK):
        yield Finding(CRITICAL, f"{key}: {ours}, which {scripts[0]} names, is missing or not executable", INSTALL)
    elif (times := sum(is_ours(script, ours) for script in scripts)) > 1:
        found = f"{key} names {ours} {times} times, and Slurm runs it as often for each job"
        yield Finding(WRONG, found, "remove a line, or an include that stands twice, from slurm.conf")
    elif globs:
        found = f"{key}={globs[0]} runs in reverse order, stops at the first failure, and drains the node if empty"
        yield Finding(ADVICE, found, "use one script that runs yours first, then warmstart's")


def _task_prolog(slurm: Slurm) -> Iterator[Finding]:
    """Check TaskProlog: without it bare jobs get no environment and no verdict; a missing file fails every task."""
    ours, scripts = slurm.hook("task-prolog"), slurm.scripts("TaskProlog")
    if refused := next((path for path in scripts if not users_can_run(path)), ""):
        found = f"TaskProlog is {refused}, which is missing, or users cannot execute it: every task of every job fails"
        yield Finding(CRITICAL, found, INSTALL if refused == ours else f"put it there, or write {ours} in its place")
    elif not scripts and slurm.spank:
        return  # it sets the environment of bare steps; in containers the enroot hook does
    elif not scripts and slurm.pyxis:
        found = "TaskProlog is not set: containers use the enroot hook; bare steps get an environment only from SPANK"
        yield Finding(ADVICE, found, "load the SPANK plugin")
    elif not any(is_ours(script, ours) for script in scripts):
        yield not_ours("TaskProlog", scripts, ours, "jobs get no environment")


def not_ours(key: str, scripts: list[str], ours: str, cost: str) -> Finding:
    """Return what Slurm runs in place of a hook, which costs that, and what to do; a script of the site's own stays."""
    found = f"{key} is {', '.join(scripts) or 'not set'} and does not run {ours}: {cost}"
    if other := next(filter(None, (other_installation(script, ours) for script in scripts)), ""):
        found = f"{key} is {', '.join(scripts)}, the hook of another installation, {other}: what jobs get is its"
        return Finding(WRONG, found, f"`{other}/bin/warmstart doctor` judges that one; for this one name {ours}")
    well = f"let {scripts[-1]} call it as its last command, `exec {ours}`, or with `|| exit $?`" if scripts else ""
    return Finding(WRONG, found, well or f"set {key}={ours}")


@check("slurm.prolog-flags")
def flags(slurm: Slurm) -> Iterator[Finding]:
    """Check PrologFlags: when the prolog runs, and what waits for it. slurmctld tells also those that others imply."""
    words = slurm.settings.words("PrologFlags")
    several = {
        "Alloc": "a job on several nodes is cold",
        "DeferBatch": "a batch job begins before its nodes have agreed what to show it",
    }
    if missing := [flag for flag in several if flag not in words]:
        found = (
            f"PrologFlags lacks {' and '.join(missing)}: steps that reach a node still in its prolog fail after 20 s; "
            f"{several[missing[0]]}"
        )
        yield Finding(WRONG, found, f"set PrologFlags={','.join([*words, *missing])}")
    if "NoHold" in words:
        found = (
            "PrologFlags has NoHold: interactive steps start before the prolog ends, and batch jobs before their "
            "nodes have agreed what to show them"
        )
        yield Finding(WRONG, found, "remove it")
    if "RunInJob" in words:  # seen on 26.05
        change = "write Contain in its place"  # which it implies, and that Alloc
        if slurm.namespace:
            found = f"{slurm.namespace} makes a job's namespace before the prolog, so no seeded cache is in it"
            yield Finding(WRONG, f"PrologFlags has RunInJob: {found}", change)
        else:
            yield Finding(ADVICE, "PrologFlags has RunInJob: the hooks' own memory is charged to the job", change)
    if "Serial" in words:
        yield Finding(ADVICE, "PrologFlags has Serial: jobs on a node wait for each other's images", "remove it")


@check("slurm.times")
def times(slurm: Slurm) -> Iterator[Finding]:
    """Check the time limits of hooks, and that systemd lets slurmd finish one."""
    yield from clashes(slurm.settings, slurm.policy)
    yield from _slurmd_stop(slurm)


def clashes(settings: Settings, policy: Policy) -> Iterator[Finding]:
    """Yield which of Slurm's times do not fit the policy's budgets, or each other."""
    longest = settings.seconds("SlurmdTimeout") or FOR_EVER  # 0: never set DOWN
    budgets = (
        (
            "prolog",
            plan.prolog_budget(policy),
            f"images.wait, seed.fetch_budget, {plan.PROLOG_SECONDS:.0f} s, and {UNPACK_S:.0f} s if images are unpacked",
        ),
        ("epilog", harvesting.epilog_budget(policy), f"harvest.budget, {harvesting.EPILOG_SECONDS:.0f} s"),
    )
    for hook, needed, keys in budgets:
        limit = _limit(settings, hook)
        if limit is None:
            found = f"{hook}s have no timeout: a hung file system blocks the node for ever"
            yield Finding(WRONG, found, _agreeing(settings, policy))
        elif limit <= needed:
            found = f"Slurm kills the {hook} after {limit} s; its budget is {needed:.0f} s ({keys})"
            yield Finding(WRONG, found, f"{_agreeing(settings, policy)}; or reduce the policy's budgets")
        elif limit >= longest:
            found = f"a {hook} may take {limit} s, SlurmdTimeout is {longest:.0f}: a reconfigure may set the node DOWN"
            yield Finding(WRONG, found, _agreeing(settings, policy))
    start, limit = settings.seconds("BatchStartTimeout"), _limit(settings, "prolog")
    if limit is not None and start <= limit:
        found = f"BatchStartTimeout is {start} s, a prolog may take {limit} s: a reconfigure meanwhile requeues its job"
        yield Finding(WRONG, found, _agreeing(settings, policy))


def _agreeing(settings: Settings, policy: Policy) -> str:
    """Return what to set so that the times fit the policy and each other; what fits stays as it is."""
    needed = int(max(plan.prolog_budget(policy), harvesting.epilog_budget(policy)))
    longest = settings.seconds("SlurmdTimeout") or FOR_EVER
    set_now = {key: settings.seconds(key) for key in ("PrologEpilogTimeout", "PrologTimeout", "EpilogTimeout")}
    limits = {key: seconds for key, seconds in set_now.items() if 0 < seconds < NO_LIMIT}
    times: dict[str, int] = {}
    if None in (_limit(settings, "prolog"), _limit(settings, "epilog")):
        limits["PrologEpilogTimeout"] = times["PrologEpilogTimeout"] = needed + MARGIN_S
    if not all(needed < seconds < longest for seconds in limits.values()):
        times = limits = dict.fromkeys(limits, needed + MARGIN_S)
    limit = max(limits.values())
    if limit >= longest:
        times["SlurmdTimeout"] = limit + MARGIN_S
    if settings.seconds("BatchStartTimeout") <= limit:
        times["BatchStartTimeout"] = limit + MARGIN_S
    return "set " + ", ".join(f"{key}={seconds}" for key, seconds in times.items())


def _limit(settings: Settings, hook: str) -> int | None:
    """Return a hook's timeout in seconds, None if it has none. Slurm 25.05 and later also have one per hook."""
    for key in (f"{hook.capitalize()}Timeout", "PrologEpilogTimeout"):
        if 0 < (seconds := settings.seconds(key)) < NO_LIMIT:
            return seconds
    return None


def _slurmd_stop(slurm: Slurm) -> Iterator[Finding]:
    """Check that systemd lets slurmd finish a hook: killed in a prolog, slurmd leaves its job there for ever."""
    if not os.path.isdir(SYSTEMD):
        return  # what else stops slurmd has to let it finish its hooks
    argv = [SYSTEMCTL, "show", f"--property=ActiveState,{_STOP}", "slurmd.service"]
    done = process.run(argv, deadline=after(SYSTEMCTL_S))
    shown = dict(line.split("=", 1) for line in done.stdout.decode().splitlines() if "=" in line)
    # A number with a unit each, as in "1min 30s"; "infinity" has none.
    parts = re.findall(r"([\d.]+)([a-z]+)", shown.get(_STOP, ""))
    longest = sum(float(number) * _SECONDS.get(unit, FOR_EVER) for number, unit in parts) if parts else FOR_EVER
    limit = max(_limit(slurm.settings, hook) or FOR_EVER for hook in ("prolog", "epilog"))
    if done.status or _STOP not in shown:
        yield Finding(UNKNOWN, f"how long slurmd has to stop: {done.complaint()}", f"see what {' '.join(argv)} says")
    elif shown.get("ActiveState") == "active" and longest <= limit and longest != FOR_EVER:
        found = f"slurmd has {shown[_STOP]} to stop, a hook may take {limit:.0f} s: killed, its job waits for ever"
        change = _agreeing(slurm.settings, slurm.policy)
        if limit != FOR_EVER:
            lines = f"`[Service]` and `TimeoutStopSec={limit + MARGIN_S:.0f}`"
            change = f"put the lines {lines} in {DROP_IN}, then `systemctl daemon-reload`"
        yield Finding(WRONG, found, change)


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


def users_can_run(path: str) -> bool:
    """Return whether everybody can read and execute a file, which is not to say the directories above it."""
    return os.path.isfile(path) and os.stat(path).st_mode & 0o005 == 0o005


def other_installation(script: str, ours: str) -> str:
    """Return the prefix of another installation whose program a script is, or names; "" if there is none."""
    text = script
    with suppress(OSError):
        text += "\n" + read_small(os.path.realpath(script), LARGEST_SCRIPT).decode("utf-8", "replace")
    name = re.escape(os.path.basename(ours))
    return next((prefix for prefix in re.findall(rf"(/[\w./+-]*)/libexec/warmstart/{name}\b", text)), "")


CHECKS = (hooks, flags, times)
