"""squeue's JSON: what the pending jobs ask for, where no wing tells of them (`slurm.slurmctld`).

JSON, because owners of jobs write some of these texts, with line breaks and bytes that are no UTF-8 (seen with 22.05);
in squeue's other formats they could look like another job. Slurm's JSON plugin differs between releases: a number is
`7` in 22.05 and `{"set": true, "infinite": false, "number": 7}` later, a state became a list of states.
"""

from __future__ import annotations

import json
import re

from warmstart.host.deadline import Deadline
from warmstart.host.wire import Json
from warmstart.slurm import commands
from warmstart.slurm.facts import PENDING, Access
from warmstart.slurm.pending import PendingJob, SubmitLine, by_priority, is_bounded, is_stuck

_LARGEST = 64 << 20  # bytes: about 3.3 KB for each job, running ones included
_JOBS = re.compile(r'"jobs":\s*\[\s*')
_BETWEEN = re.compile(r"[\s,]*")


def pending(access: Access, deadline: Deadline) -> list[PendingJob]:
    """Return the pending jobs, by priority. `ValueError` if squeue fails, or has no JSON."""
    argv = [commands.squeue(access.scontrol), "--json", f"--states={PENDING}"]
    process = commands.asked(access, argv, deadline, most=_LARGEST)
    if process.status != 0:
        raise ValueError(f"squeue: {process.complaint()}")
    return parse(process.stdout.decode("utf-8", "replace"))


def parse(text: str) -> list[PendingJob]:
    """Return the pending jobs in squeue's output, by priority, without those that are stuck.

    What follows a cut in the output is left out.
    `ValueError` if the output has no jobs in JSON's form.
    """
    start = _JOBS.search(text)
    if start is None:
        raise ValueError("squeue's JSON has no jobs")
    decoder, at = json.JSONDecoder(strict=False), start.end()
    prioritized: list[tuple[int, PendingJob]] = []
    while text[at : at + 1] not in ("]", ""):
        try:
            item, at = decoder.raw_decode(text, at)
        except (ValueError, RecursionError):
            break
        if _is_pending(item) and (job := _job(item)) is not None:
            prioritized.append((_number(item.get("priority"), 1), job))
        between = _BETWEEN.match(text, at)
        at = between.end() if between else at
    return by_priority(prioritized)


def _is_pending(item: Json) -> bool:
    if not isinstance(item, dict):
        return False
    states = item.get("job_state")
    is_pending = states == PENDING or (isinstance(states, list) and PENDING in states)
    return is_pending and not is_stuck(_number(item.get("priority"), 1), _text(item.get("state_reason")))


def _job(item: dict[str, Json]) -> PendingJob | None:
    job = PendingJob(
        job_id=_number(item.get("job_id")),
        uid=_number(item.get("user_id")),
        gid=_number(item.get("group_id")),
        cluster=_text(item.get("cluster")),
        partition=_text(item.get("partition")),
        account=_text(item.get("account")),
        qos=_text(item.get("qos")),
        constraints=_text(item.get("features")),
        name=_text(item.get("name")),
        array=_number(item.get("array_job_id")),
        comment=_text(item.get("comment")),
    )
    job = job._replace(**SubmitLine.of(_text(item.get("submit_line")))._asdict())
    return job if is_bounded(job) else None


def _number(value: Json, default: int = 0) -> int:
    if isinstance(value, dict):
        value = value.get("number") if value.get("set") else None
    return value if isinstance(value, int) else default


def _text(value: Json) -> str:
    return value if isinstance(value, str) else ""
