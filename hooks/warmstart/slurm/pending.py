"""Pending jobs: what each asks for, as far as slurmctld tells.

Everything is bounded: comments have at most 1024 characters (`_validate_job_desc` in Slurm's
src/slurmctld/job_mgr.c), but submit lines up to 1 MB (SchedulerParameters=max_submit_line_size).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

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
