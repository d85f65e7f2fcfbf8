"""Jobs that run, and are harvested meanwhile (docs/adr/0061): when, of what, and what was taken. Runs as root.

The prolog leaves an errand for the run. A timer looks at the errands' names every few minutes, and for the file `WORD`
at the top of the run's caches, by which the job says itself that it is time. Whoever harvests holds a flock on the
run's directory, and is ended by whoever ends the run.

Of a job on several nodes the head node numbers the rounds, and says so on the run's board; each other node takes part
when it is due, and hands in (`store.parts`). A round that lacks a node is dropped.

What was taken of a profile stands in a file of root's beside the cache, `.taken-PROFILE`, which goes with it. It is
written before anything is published, and once more afterwards: where a process died in between, the store tells. So it
does of what a node has handed in.
"""

from __future__ import annotations

import errno
import os
import time

from warmstart.errand import Errand, Errands, Kind
from warmstart.host import files, wire
from warmstart.host.deadline import after
from warmstart.host.files import names_in, opened_dir, read_small, replace_file
from warmstart.host.untrusted import TurnedAway, open_file, opened_of_job
from warmstart.lean import TYPE_CHECKING, NamedTuple, dumps, suppress
from warmstart.paths import CACHES, NodePaths
from warmstart.profiles import registry
from warmstart.profiles.contract import FILES
from warmstart.run.state import Caches, Run
from warmstart.store.barrier import Barrier
from warmstart.store.manifest import Entries

if TYPE_CHECKING:
    from warmstart.host.deadline import Deadline
    from warmstart.policy.keys import Policy
    from warmstart.store.client import StoreClient

ROUNDS = Kind("rounds", of_runs=True)
WORD = ".harvest"
LONGEST_S = 86_400.0  # between two rounds
SETTLING = 0.1  # of `harvest.while_running`: what an entry must not have changed for

_TOPIC, _ROUND = "rounds", "round."  # of the board, and the beginning of its notices
_STAGE = ".live."  # in a stage's name, after the run's (`steps.harvest`)
_TAKEN = ".taken-"
_LONGEST = 64 << 20
_ENDING_S = 1.0  # for a killed process to end


class Watched(NamedTuple):
    """What the errand says of a run."""

    run_directory: str
    looked: float  # when its last round began, or its caches were shown; in seconds since the epoch


class Round(NamedTuple):
    """A notice of the head node's: that it has begun a round."""

    next: int  # when the one after it is due, in seconds since the epoch


class Taken(NamedTuple):
    """What was taken of a profile while the job ran."""

    bundle: str = ""  # the last one with it; of a job on several nodes nobody knows it
    entries: Entries = {}  # noqa: RUF012 - never mutated, like the rest
    pending: Entries = {}  # noqa: RUF012 - being published


def why_not(policy: Policy, run: Run) -> str:
    """Return why a job is harvested at its end alone, "" if it is harvested while it runs, too."""
    if run.fresh:
        return "it asked to start fresh"
    if policy.harvest.only_successful:
        return "harvest.only_successful"
    return "" if run.own.publish_scope else "nodes publish nothing of it"


def profiles(policy: Policy, caches: Caches) -> list[str]:
    """Return the profiles of caches that are harvested while their job runs, those first that others refer to.

    Left out are single files that are rewritten, declared files, and what counts only after success.
    """
    known = {*registry.names(policy.profiles)} - {FILES}
    found = [registry.get(name, policy.profiles) for name in caches.seeded if name in known]
    taken = [profile for profile in found if not profile.lock and not profile.only_successful]
    return [profile.name for profile in sorted(taken, key=lambda profile: bool(profile.refers_to))]


def watch(policy: Policy, paths: NodePaths, run: Run) -> dict[str, object]:
    """Leave an errand for a run; return `look`, when it is due in seconds since the epoch, or `at_end`, why not."""
    if reason := why_not(policy, run):
        return {"at_end": reason}
    now = int(time.time())
    errand = Errand(str(run.uid), now + (policy.harvest.while_running or 0), 0, run.name)
    try:
        Errands(paths, ROUNDS).put(errand, Watched(run.directory, now))
    except OSError as error:
        return {"at_end": error.strerror}
    return {"look": errand.due}


def due(paths: NodePaths) -> list[Errand]:
    """Return the runs that are to be harvested now: by the names of errands, and by the jobs' own word."""
    now, errands = time.time(), Errands(paths, ROUNDS)
    return [errand for errand in errands.all() if not 0 < errand.due - now < LONGEST_S or _is_asked(errands, errand)]


def after_this(errand: Errand, first_s: int) -> Errand:
    """Return a run's errand with the number of this round, and when the next one is due."""
    later = errand._replace(attempts=errand.attempts + 1)
    return later._replace(due=int(time.time() + min(first_s * 2.0**later.attempts, LONGEST_S - 1)))


def agreed(store: StoreClient, run: Run, own: Errand, deadline: Deadline) -> Errand | None:
    """Return `own` as all nodes of a job have it; None on another than the head node if that has begun no round since.

    Raises `StoreError`.
    """
    where = barrier(run)
    if run.head:
        return own._replace(due=where.begin(store, f"{_ROUND}{own.attempts}", Round(own.due), deadline).next)
    last = max(map(int, where.marks(store, _ROUND, deadline)), default=0)
    begun = where.hear(store, f"{_ROUND}{last}", Round, deadline)
    return own._replace(attempts=last, due=begun.next) if begun and last >= own.attempts else None


def barrier(run: Run) -> Barrier:
    """Return where the nodes of a job agree on its rounds."""
    return Barrier.of((run.cluster, run.uid), run.job_id, run.restarts, _TOPIC, run.nodelist)


def end(paths: NodePaths, run: Run) -> None:
    """Have a run harvested no more while it runs, and end who does so. An errand that stays goes when it is due."""
    with suppress(OSError):
        Errands(paths, ROUNDS).drop(run.name)
    with suppress(OSError), opened_dir(run.directory) as fd:
        if files.end_flock_holders(fd, after(_ENDING_S)):
            _remove_stages(paths, run)


def _remove_stages(paths: NodePaths, run: Run) -> None:
    """Remove what a harvest that was ended had copied. What takes longer is maintenance's."""
    with opened_dir(paths.stage) as fd:
        for name in os.listdir(fd):
            if name.startswith(f"{run.name}.") and _STAGE in name:
                files.remove_tree(fd, name, after(_ENDING_S))


def taken(directory: str, profile: str) -> Taken:
    """Return what was taken of a profile of the caches in `directory`; nothing if it can't be read: the store tells."""
    with suppress(OSError, ValueError):
        return wire.from_object(Taken, wire.parse(read_small(f"{directory}/{_TAKEN}{profile}", _LONGEST)))
    return Taken()


def note(directory: str, profile: str, what: Taken) -> None:
    """Write down what is taken of a profile of the caches in `directory`. Raises `OSError`."""
    data = dumps(what._asdict()).encode()
    if len(data) > _LONGEST:  # `taken` would refuse it
        raise OSError(errno.EFBIG, f"what was taken has {len(data)} bytes of names")
    with opened_dir(directory) as fd:
        replace_file(fd, _TAKEN + profile, data, 0o600, durable=False)


def _is_asked(errands: Errands, errand: Errand) -> bool:
    """Return whether a job has given its word since the last round: by the file's ctime, which it cannot set."""
    watched = None
    with suppress(OSError):
        watched = errands.read(errand, Watched)
    top = watched.run_directory if watched else ""
    places = [top, *(f"{top}/{CACHES}/{key}" for key in names_in(f"{top}/{CACHES}"))] if top else []
    for place in places:
        with suppress(OSError, TurnedAway), opened_dir(place) as base, opened_of_job("cache", base) as fd:
            word = open_file(WORD, fd, files.mount_id(fd), None)  # the job may have mounted something on it
            given = os.fstat(word).st_ctime
            os.close(word)
            if watched and given > watched.looked:
                return True
    return False
