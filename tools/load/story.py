"""Whether the audit tells every job's whole story: beside what Slurm ran, and what it said of each job.

The witness is a shell script in front of each hook: it writes down that Slurm started the hook, how it ended, and what
it printed to stderr. There are the events that could be written nowhere (docs/operations/runbook.md, "A full state
disk"): beside the host's syslog, which a test cannot take over.
"""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from tests.lib import installation
from tests.lib.site import Site
from warmstart.audit.line import Line, decoded
from warmstart.report.lines import Hook, hooks
from warmstart.report.story import about

HOOKS = ("prolog", "epilog")
_PRINTED = b"warmstart: audit log "
_SHIM = """\
exec 9>>{log}
echo "start {hook} $SLURM_JOB_ID $SLURMD_NODENAME $$ 0 $(date +%s.%N)" >&9
if [ -e {log}.off.$SLURMD_NODENAME ]; then
    unshare --mount sh -c 'mount -t tmpfs off {etc} && touch {etc}/off && exec {program}' 2>>{log}.stderr
else
    {program} 2>>{log}.stderr
fi
status=$?
echo "end {hook} $SLURM_JOB_ID $SLURMD_NODENAME $$ $status $(date +%s.%N)" >&9
exit $status
"""


class Call(NamedTuple):
    """One start of a hook by Slurm."""

    hook: str
    job: int
    node: str
    at: float  # time.time()
    status: int | None  # None: it did not end
    seconds: float


class Off(NamedTuple):
    """A time at which warmstart was switched off, on one node or on all."""

    since: float
    until: float
    node: str = ""


class Ended(NamedTuple):
    """What slurmctld said of a job when it had ended."""

    job: int
    state: str
    nodes: tuple[str, ...]  # where it ran last, none if it never began


def watch(site: Site, log: Path) -> None:
    """Put the witness in front of the installed hooks."""
    directory = site.cluster.prefix / "libexec" / "warmstart"
    for hook in HOOKS:
        program = directory / f"{hook}.installed"
        (directory / hook).rename(program)
        body = _SHIM.format(log=log, hook=hook, program=program, etc=site.etc)
        installation.write_hook(site.cluster.prefix, hook, body)


def switch(log: Path, node: str, *, off: bool) -> None:
    """Show the hooks of one node of this host a file `off`, or no longer."""
    file = Path(f"{log}.off.{node}")
    if off:
        file.touch()
    else:
        file.unlink()


def calls(log: Path) -> list[Call]:
    """Return what the witness saw, in the order of the starts."""
    open_calls: dict[tuple[str, ...], Call] = {}
    found: list[Call] = []
    for line in log.read_text().splitlines():
        what, hook, job, node, pid, value, at = line.split()
        if what == "start":
            open_calls[hook, job, node, pid] = Call(hook, int(job), node, float(at), None, 0.0)
        else:
            call = open_calls.pop((hook, job, node, pid))
            found.append(call._replace(status=int(value), seconds=float(at) - call.at))
    return sorted([*found, *open_calls.values()], key=lambda call: call.at)


def printed(log: Path) -> list[Line]:
    """Return the lines that hooks printed because they could not write them into the log."""
    lines = Path(f"{log}.stderr").read_bytes().splitlines()
    texts = [line[line.find(b"{") :] for line in lines if line.startswith(_PRINTED)]
    return [line for text in texts if (line := decoded(text)) and "event" in line]


def tracebacks(log: Path) -> list[str]:
    """Return where a hook printed that it has a bug."""
    text = Path(f"{log}.stderr").read_text(errors="replace")
    return [f"stderr: {part.strip()[-400:]}" for part in text.split("Traceback (most recent call last)")[1:]]


def reissued(logs: Mapping[str, str]) -> set[tuple[int, str]]:
    """Return the jobs for which a slurmd has run no prolog, by node: requeued ones that it still knew.

    `logs` are those of slurmd. Slurm 22.05 holds a requeued job for two minutes, and slurmd knows it for two minutes
    from the end of its epilog, which is a moment later.
    """
    return {
        (int(job), node)
        for node, log in logs.items()
        for job in re.findall(r"reissued job credential for job (\d+)", log)
    }


def gaps(
    seen: Sequence[Call],
    lines: Iterable[Line],
    ended: Iterable[Ended],
    off: Sequence[Off] = (),
    without_prolog: Collection[tuple[int, str]] = (),
) -> list[str]:
    """Return where the audit and the witness differ, and jobs whose story has no beginning or end.

    A hook that ran while warmstart was switched off may be in the audit.
    """
    found = [f"{call.hook} of job {call.job} on {call.node}: exit status {call.status}" for call in seen if call.status]
    found += [f"{call.hook} of job {call.job} on {call.node} did not end" for call in seen if call.status is None]
    told = [hook for hook in hooks(lines, time.time()) if hook.name in HOOKS and not hook.done_by]
    by_witness = Counter((call.hook, call.job, call.node) for call in seen)
    maybe = Counter((call.hook, call.job, call.node) for call in seen if _may_be_off(call, off))
    by_audit = Counter((hook.name, hook.job, hook.node) for hook in told)
    for key in sorted(by_witness.keys() | by_audit.keys()):
        if not by_witness[key] - maybe[key] <= by_audit[key] <= by_witness[key]:
            hook, job, node = key
            found.append(f"{hook} of job {job} on {node}: {by_witness[key]} started, {by_audit[key]} in the audit")
    found += [
        f"{one.name} of job {one.job} on {one.node}: {one.outcome} in the audit"
        for one in told
        if one.outcome not in ("ok", "failed", "refused")
    ]
    found += _ends(seen, ended, without_prolog)
    found += _untold(told)
    return found


def _may_be_off(call: Call, off: Sequence[Off]) -> bool:
    return any(
        call.at < one.until and call.at + call.seconds > one.since and one.node in ("", call.node) for one in off
    )


def _ends(seen: Sequence[Call], ended: Iterable[Ended], without_prolog: Collection[tuple[int, str]]) -> list[str]:
    """Each job's last run has an epilog on each of its nodes, and a prolog before it."""
    started: dict[tuple[int, str], list[str]] = {}
    for call in seen:
        started.setdefault((call.job, call.node), []).append(call.hook)
    found = []
    for end in ended:
        for node in end.nodes:
            last = started.get((end.job, node), [])[-2:]
            is_owed = end.state in ("COMPLETED", "FAILED") and (end.job, node) not in without_prolog
            if "prolog" not in last and is_owed:
                found.append(f"job {end.job} {end.state} on {node} without a prolog")
            if last[-1:] != ["epilog"]:
                found.append(f"job {end.job} {end.state} on {node} without an epilog")
    return found


def _untold(told: Sequence[Hook]) -> list[str]:
    """`warmstart explain` can tell each job."""
    by_job: dict[int, list[Hook]] = {}
    for hook in told:
        by_job.setdefault(hook.job, []).append(hook)
    found = []
    for job, own in by_job.items():
        who = next(about(own))
        if not who.startswith(f"job {job} of ") or "?" in who:
            found.append(f"job {job}: its story lacks its user: {who}")
    return found
