"""Jobs that run, and are harvested meanwhile: which, of what, and what is known of it later. Runs as root.

The prolog leaves an item in the queue for the run; a timer looks every few minutes for one that is due. The harvest is
that of a job's end, on what has settled, and of jobs with one node alone. Whoever does it holds a flock on the run's
directory, and is ended by whoever ends the run.

What was published counts as seeded from then on, so that the end finds what the job has changed of it. Where a process
dies before that is written down, the store knows the entries all the same.
"""

from __future__ import annotations

import time

from warmstart.host import files
from warmstart.host.deadline import after
from warmstart.host.files import opened_dir
from warmstart.lean import NamedTuple, suppress
from warmstart.paths import NodePaths
from warmstart.policy.keys import Policy
from warmstart.profiles import registry
from warmstart.profiles.contract import FILES
from warmstart.queue import Item, Kind, Queue
from warmstart.run import state
from warmstart.run.state import Caches, Run, SeededBundle

LIVE = Kind("live")
LONGEST_S = 43_200.0  # between two harvests of a job
SETTLING = 0.1  # of `harvest.while_running`: what an entry must not have changed for
_ENDING_S = 1.0  # for a killed process to end


class Watched(NamedTuple):
    """What the item says."""

    directory: str  # the run's


def why_not(policy: Policy, run: Run) -> str:
    """Return why a job is harvested at its end alone, "" if it is harvested while it runs, too."""
    if run.fresh:
        return "it asked to start fresh"
    if policy.harvest.only_successful:
        return "harvest.only_successful"
    if run.nodelist:
        return "it has several nodes"
    return "" if run.own.publish_scope else "nodes publish nothing of it"


def chosen(policy: Policy, run: Run) -> Run:
    """Return a run with what is harvested of it while it runs as what is left.

    Left out are single files that are rewritten, declared files, and what counts only after success.
    """

    def names(caches: Caches) -> list[str]:
        known = {*registry.names(policy.profiles)} - {FILES}
        found = [registry.get(name, policy.profiles) for name in caches.seeded if name in known]
        return [profile.name for profile in found if not profile.lock and not profile.only_successful]

    return run.with_caches({caches.key: caches._replace(left=names(caches)) for caches in run.caches})


def next_due(run: Run, first_s: int) -> int:
    """Return when a run is harvested next: when it has run for twice as long, in seconds since the epoch."""
    now = time.time()
    return int(now + min(max(now - run.began, float(first_s)), LONGEST_S))


def watch(policy: Policy, paths: NodePaths, run: Run) -> dict[str, object]:
    """Have a run harvested; return `look`, when first, in seconds since the epoch, or `at_end`, why it is not."""
    if reason := why_not(policy, run):
        return {"at_end": reason}
    item = Item(str(run.uid), int(time.time() + (policy.harvest.while_running or 0)), 1, run.name)
    try:
        Queue(paths, LIVE).put(item, Watched(run.directory))
    except OSError as error:
        return {"at_end": error.strerror}
    return {"look": item.due}


def end(paths: NodePaths, run: Run) -> None:
    """Have a run harvested no more while it runs, and end who does so."""
    with suppress(OSError):  # one that stays goes when it is due
        Queue(paths, LIVE).drop(run.name)
    with suppress(OSError), opened_dir(run.directory) as fd:
        files.end_flock_holders(fd, after(_ENDING_S))


def note(paths: NodePaths, run: Run, bundles: list[tuple[str, str, SeededBundle]]) -> None:
    """Write down what was published of a run, unless that has ended: by caches and profile. Raises as `state.save`."""
    with state.job_lock(paths.state, run.job_id, after(_ENDING_S)):
        known = state.load(paths.state, run.job_id)
        if known is None or known.name != run.name:
            return
        for key, name, bundle in bundles:
            (caches,) = (caches for caches in known.caches if caches.key == key)
            was = caches.seeded[name]
            seeded = {**caches.seeded, name: was._replace(bundles=[*was.bundles, bundle])}
            known = known.with_caches({key: caches._replace(seeded=seeded)})
        state.save(paths.state, known)
