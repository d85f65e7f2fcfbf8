"""Jobs that run, and are harvested meanwhile: which, and how that begins and ends. Runs as root.

The prolog leaves an item in the queue for the run; a timer looks every few minutes for one that is due
(`attempts.live`). The harvest is that of a job's end, on new entries that have settled; only of jobs with one node. Who
does it holds a flock on the run's directory, and is ended by who ends the run.

What was published then is known to the next look, which leaves it out. The job's end does not: what the job made takes
its place, as of a job that began fresh. So what the job has changed since is there afterwards.
"""

from __future__ import annotations

import time

from warmstart.host import files
from warmstart.host.deadline import after
from warmstart.host.files import opened_dir
from warmstart.lean import suppress
from warmstart.paths import NodePaths
from warmstart.policy.keys import Policy
from warmstart.queue import Asker, Item, Kind, Queue
from warmstart.run.state import Run

LIVE = Kind("live")
_UNTRIED = 1  # attempts of a new item, which is due as if one had been made
_ENDING_S = 1.0  # for a killed process to end


def why_not(policy: Policy, run: Run) -> str:
    """Return why a job is harvested at its end alone, "" if it is harvested while it runs, too."""
    if run.fresh:
        return "it asked to start fresh"
    if policy.harvest.only_successful:
        return "harvest.only_successful"
    if run.nodelist:
        return "it has several nodes"
    return "" if run.own.publish_scope else "nodes publish nothing of it"


def watch(policy: Policy, paths: NodePaths, run: Run) -> dict[str, object]:
    """Have a run harvested; return `look`, when first, in seconds since the epoch, or `at_end`, why it is not."""
    if reason := why_not(policy, run):
        return {"at_end": reason}
    item = Item(str(run.uid), int(time.time() + (policy.harvest.while_running or 0)), _UNTRIED, run.name)
    try:
        Queue(paths, LIVE).put(item, Asker.of(run))
    except OSError as error:
        return {"at_end": error.strerror}
    return {"look": item.due}


def end(paths: NodePaths, run: Run) -> Run:
    """Have a run harvested no more while it runs, and end who does so. Return it as its end is to harvest it."""
    queue, item = Queue(paths, LIVE), None
    with suppress(OSError):  # one that stays goes when it is due
        item = queue.find(run.name)
        queue.drop(run.name)
    with suppress(OSError), opened_dir(run.directory) as fd:
        files.end_flock_holders(fd, after(_ENDING_S))
    return run if item and item.attempts == _UNTRIED else run._replace(fresh=True)
