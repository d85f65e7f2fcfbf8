"""Whether the job of a prolog that waits is over. Runs as root, only where an image is missing.

slurmd tells a prolog nothing of that, and ends no job before its prolog has ended: so a cancelled job would hold its
nodes as long as its prologs wait (docs/operations/slurm-settings.md). The job's head node asks slurmctld, seldom: about
ten times in four minutes. Its other nodes hear of it through the store, so slurmctld has as many questions as there are
jobs that wait, however many nodes they have. Where these wait for the head node's word (agreed.py), which may be over
itself, the second node asks as well, about five times.

Only a clear answer counts. Without one, or if slurmctld does not know the job, the wait goes on.
"""

from __future__ import annotations

import os
import time
from contextlib import suppress
from typing import NamedTuple

from warmstart.errors import UserError, WarmstartError
from warmstart.host.deadline import Deadline, after, jittered
from warmstart.run.state import Run
from warmstart.slurm.facts import Access
from warmstart.slurm.slurmctld import Slurmctld
from warmstart.store.barrier import Barrier, take_down
from warmstart.store.client import StoreClient

FIRST_S = 10.0  # before the first question, and on other nodes the first look
GROWTH = 1.5
LONGEST_S = 30.0  # between two questions
STAND_IN_S = 40.0  # between two questions of the second node, and before the first one
LOOK_S = 5.0  # between two looks of another node
ANSWER_S = 5.0
_OVER = "over"  # topic, and notice


class JobOver(UserError):
    """The job was cancelled or requeued while its prolog waited for an image."""

    code = "job-over"
    template = "the job was cancelled or requeued while it waited for image {image}"
    hint = "the import goes on: the next job that needs the image finds it"


class Over(NamedTuple):
    """The job is over."""


class JobEnd:
    """One prolog's watch for the end of its job."""

    def __init__(self, run: Run, store: StoreClient, scontrol: str, *, stands_in: bool = False) -> None:
        """Begin to watch. The head node removes what an earlier job of the same id left in the store.

        `stands_in`: this other node asks, too.
        """
        self._run = run
        self._store = store
        user = (run.cluster, run.uid)
        self._barrier = Barrier.of(user, run.job_id, run.restarts, _OVER, run.nodelist)
        self._slurmctld = Slurmctld(Access(scontrol, os.environ.get("SLURM_CONF", "")))
        self._stands_in = stands_in
        self._pause = STAND_IN_S if stands_in else FIRST_S
        self._due = time.monotonic() + jittered(self._pause)
        if run.head and run.nodelist:
            with suppress(WarmstartError):
                store.run(after(ANSWER_S), take_down, self._barrier.path)

    def is_known(self, deadline: Deadline) -> bool:
        """Return whether the job is known to be over. Asks only if it is time to."""
        if time.monotonic() < self._due:
            return False
        is_over = False
        with suppress(WarmstartError):
            is_over = self._ask(deadline) if self._run.head or self._stands_in else self._look(deadline)
        if not self._stands_in:
            self._pause = min(self._pause * GROWTH, LONGEST_S) if self._run.head else LOOK_S
        self._due = time.monotonic() + jittered(self._pause)
        return is_over

    def _ask(self, deadline: Deadline) -> bool:
        facts = self._slurmctld.job(self._run.job_id, deadline.within(ANSWER_S))
        if facts is None or not facts.has_left_its_nodes:
            return False
        if self._run.nodelist:
            with suppress(WarmstartError):  # the others wait as long as they would without it
                self._barrier.begin(self._store, _OVER, Over(), deadline.within(ANSWER_S))
        return True

    def _look(self, deadline: Deadline) -> bool:
        if not self._run.nodelist:
            return False
        return self._barrier.hear(self._store, _OVER, Over, deadline.within(ANSWER_S)) is not None
