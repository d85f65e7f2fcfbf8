"""Pending jobs, from squeue's JSON: what each asks for, as far as slurmctld tells.

JSON, because owners of jobs write some of these texts, with line breaks and bytes that are no UTF-8 (seen with 22.05);
in squeue's other formats they could look like another job. Slurm's JSON plugin differs between releases: a number is
`7` in 22.05 and `{"set": true, "infinite": false, "number": 7}` later, a state became a list of states.

Everything is bounded: comments have at most 1024 characters (`_validate_job_desc` in Slurm's
src/slurmctld/job_mgr.c), but submit lines up to 1 MB (SchedulerParameters=max_submit_line_size).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from typing import NamedTuple

from warmstart.host.wire import Json
from warmstart.slurm.facts import PENDING

MOST = 5000  # jobs; those of the highest priority
LONGEST_COMMENT = 1024
LONGEST_TEXT = 256  # of any other
LONGEST_LINE = 8192  # of a submit line; options come first in it
# Why a job waits, if somebody has to change it before it can start (squeue(1), JOB REASON CODES). A job that is held
# for any reason has the priority 0, and no other has: the multifactor plugin's least is 1.
STUCK = frozenset(
    {
        "JobHeldUser", "JobHeldAdmin", "JobHoldMaxRequeue", "BadConstraints", "DependencyNeverSatisfied",
        "InvalidAccount", "InvalidQOS", "ReservationDeleted", "ReservationInvalid",
    }
)  # fmt: skip
_JOBS = re.compile(r'"jobs":\s*\[\s*')
_BETWEEN = re.compile(r"[\s,]*")
_OPTIONS = ("--container-image", "--warm-image")


class PendingJob(NamedTuple):
    """A job that waits to be started. `comment`, `constraints`, `name` and the images are its owner's text."""

    job_id: int
    uid: int
    gid: int
    cluster: str
    partition: str  # or several: `main,gpu`
    account: str
    qos: str
    constraints: str
    name: str
    array: int  # id of the job's array; 0 if it is in none
    comment: str
    pyxis_image: str = ""  # --container-image on the submit line, which slurmctld has since 25.11
    warm_image: str = ""  # --warm-image there
    no_warm: bool = False  # --no-warm there


class SubmitLine(NamedTuple):
    """The options in a submit line that say which images a job needs."""

    pyxis_image: str = ""
    warm_image: str = ""
    no_warm: bool = False

    @classmethod
    def of(cls, line: str) -> SubmitLine:
        """Find the options. Slurm joins the words with blanks, without quotes (`slurm_option_get_argv_str`)."""
        words = line[: LONGEST_LINE + 1].split()
        if len(line) > LONGEST_LINE:
            words = words[:-1]  # it may be cut
        values: dict[str, str] = {}
        for word, following in zip(words, [*words[1:], ""], strict=False):
            option, is_joined, value = word.partition("=")
            if option in _OPTIONS:
                values.setdefault(option, value if is_joined else following)
        pyxis_image, warm_image = (values.get(option, "") for option in _OPTIONS)
        return cls(pyxis_image, warm_image, "--no-warm" in words)


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


def by_priority(prioritized: Iterable[tuple[int, PendingJob]]) -> list[PendingJob]:
    """Return the first `MOST` of (priority, job), those of the same priority by their ids."""
    ranked = sorted(prioritized, key=lambda pair: (-pair[0], pair[1].job_id))
    return [job for _, job in ranked[:MOST]]


def is_stuck(priority: int | None, reason: str) -> bool:
    """Return whether a pending job cannot start as it is: it is held, or what it asks for cannot be had."""
    return priority == 0 or reason in STUCK


def is_bounded(job: PendingJob) -> bool:
    """Return whether no text of a job is too long. A cut one could match a pattern that the whole does not."""
    texts = (job.cluster, job.partition, job.account, job.qos, job.constraints, job.name)
    return len(job.comment) <= LONGEST_COMMENT and all(len(text) <= LONGEST_TEXT for text in texts)


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
