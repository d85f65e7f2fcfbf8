"""Caches of images that only a job's steps name: made while the job runs, once for each image (docs/adr/0057).

    find the image's caches ─▶ none: write their file, make and lock their directory ─▶ seed ─▶ write it, show them
                            └─▶ being made: wait for their maker; nobody makes them: undo them, make others

The nodes of a step show the same. Caches name the nodes that agreed on what is in them, and a step takes those that
have all of its nodes. Which ones that are the nodes learn at the barrier, where the first of them has said it. So a
node whose step has come early, and makes caches for it, and one on which a step on more nodes has come first, take the
same. If that is out of order, a node makes caches of its own for the step, and shows nothing.

Runs as root, beside the job's hooks. The maker holds a flock on the directory of the caches, which only root can open,
and the job's lock no longer than to write a file. It may be killed between any two calls: caches that are not whole and
not locked are undone by the next one who wants them, and go with the run at the latest. A key, and so a mount point, is
never used again.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import NamedTuple

from warmstart import view, wing
from warmstart.errors import StoreError, WarmstartError
from warmstart.host import client
from warmstart.host.deadline import Deadline, after
from warmstart.host.files import ensure_dir, opened_dir, try_flock, wait_flock
from warmstart.host.identity import WorkerSilent
from warmstart.host.remove import remove_tree
from warmstart.paths import CACHES
from warmstart.profiles import registry
from warmstart.run import state
from warmstart.run.state import Caches, Run
from warmstart.slurm.nodes import expand, has_several
from warmstart.step_image import LOCK_S, StepHasNoCaches, StepImage, StepImagePart, locked_run
from warmstart.steps import seed
from warmstart.steps.contract import Context
from warmstart.store.barrier import Barrier, run_of

MOST = 8  # images of a run on a node that have caches beside its own
BEYOND_FETCHING_S = 15.0  # that making caches may take, beyond `seed.fetch_budget`
ATTACHING_S = 5.0
BARRIER_S = 5.0  # for the nodes' word whose caches a step takes
REMOVAL_S = 5.0
_TOPICS = "step-"  # so begin the names of all that steps' nodes agree on
_WHOSE = "whose"


def provide_by_wings(context: Context, image: StepImage, namespaces: list[int], key: str | None, wait_s: float) -> None:
    """Have wings provide what they have for a step's image besides its caches of this `key`, if it has any.

    The first step that asks waits. Later ones take what is there, and ask again while anything is on its way.
    """
    run = context.run
    is_known = (
        any(caches.image == image.digest and caches.seeded for caches in run.caches) or image.digest == run.own.image
    )
    deadline = after(0.0 if is_known else wait_s)
    coming = False
    for module in context.policy.parts("step_image"):
        part: StepImagePart = wing.load(module)
        coming = part.provide(context, image, namespaces, deadline) or coming
    if coming and key is not None:
        _show(context, image, key, view.MORE)


class Whose(NamedTuple):
    """Whose caches a step takes."""

    nodes: str  # a hostlist


class _Claim(NamedTuple):
    """Which caches of its image a step takes."""

    nodes: str  # of which they are, as a hostlist
    barrier: Barrier | None  # where they agree on what is in them; None: they need not, and any will do

    def waits(self, begins: bool) -> None:
        """Tell whoever wants to know."""
        if self.barrier:
            self.barrier.waits(begins)


def provide(context: Context, image: StepImage, namespaces: list[int], barrier: Barrier | None = None) -> str:
    """Return the key of the run's caches of an image, "" for its own; make them if there are none, and show them.

    `context` has the run as the step found it. `namespaces` are open mount namespaces that must see the
    overlays. `barrier` is where the job's nodes agree; None: each decides for itself. Raises `StepHasNoCaches`,
    `JobBusy` and what keeps caches from being made.
    """
    if not context.run.own.path:
        raise StepHasNoCaches(problem="the job has no caches on this node that others could be added to")
    if image.digest == context.run.own.image:
        _show(context, image, "")
        return ""
    deadline = context.deadline.within(context.policy.seed.fetch_budget + BEYOND_FETCHING_S)
    claim = _claim(context, image, barrier, deadline)
    while True:
        with _claimed(context, image, claim, deadline) as found:
            if found.seeded:
                _show(context, image, found.key)
                return found.key
            if found.facts:  # somebody has begun them, and makes them no more
                _undo(context, found)
                continue
            _make(context._replace(deadline=deadline), image, found, namespaces, claim.barrier)
            return found.key


def barrier_about(run: Run, what: str, nodelist: str) -> Barrier:
    """Return where nodes of a run agree on something that steps name while it runs."""
    topic = f"{_TOPICS}{hashlib.sha256(what.encode()).hexdigest()[:32]}"
    return Barrier.of((run.cluster, run.uid), run.job_id, run.restarts, topic, nodelist)


def own_nodes(run: Run, said: str) -> str:
    """Return a step's nodes: what is `said`, if that is a part of the job's with this node; else this node alone."""
    try:
        jobs = expand(run.nodelist)
        its = {*expand(said, most=len(jobs))}
    except ValueError:
        return run.node
    return said if run.node in its and its <= {*jobs} else run.node


def _claim(context: Context, image: StepImage, barrier: Barrier | None, deadline: Deadline) -> _Claim:
    """Find out which caches a step takes."""
    run = context.run
    asked = own_nodes(run, image.nodes)
    if barrier is None or not has_several(asked) or not _is_in_step(context):
        return _Claim(asked, None)
    own = [other for other in _read(context).others if other.image == image.digest]
    # Of those that are not whole a step on other nodes may be cancelled, and they never say what they show.
    wide = [other.nodes for other in own if other.seeded and {*expand(asked)} <= {*expand(other.nodes)}]
    whose = wide[0] if wide else asked
    place = barrier_about(run, f"{image.digest} {asked}", asked)
    with suppress(StoreError):  # then it cannot agree either, and is cold
        whose = place.begin(context.store, _WHOSE, Whose(whose), deadline.within(BARRIER_S)).nodes
    return _Claim(whose, barrier_about(run, f"{image.digest} {whose}", whose)._replace(waits=barrier.waits))


def _is_in_step(context: Context) -> bool:
    """Return whether the nodes have to show the same."""
    run, defined = context.run, context.policy.profiles
    return not run.fresh and any(registry.get(name, defined).in_step for name in run.own.seeded)


@contextmanager
def _claimed(context: Context, image: StepImage, claim: _Claim, deadline: Deadline) -> Iterator[Caches]:
    """Yield the caches of an image: whole; or, locked for a `with`, begun by somebody (they have facts), or new."""
    with locked_run(context) as run:
        own = [other for other in run.others if other.image == image.digest]
        found = next((other for other in own if not claim.barrier or other.nodes == claim.nodes), None)
        fd = -1
        if found is None:
            found, fd = _begin(context, run, image, claim.nodes)
        elif not found.seeded:
            fd = _opened(run.directory_of(found))
    try:
        if fd >= 0 and found.facts:
            claim.waits(True)
            is_ours = wait_flock(fd, deadline)
            claim.waits(False)
            if not is_ours:
                raise StepHasNoCaches(problem=f"another step still makes the caches of image {image.reference}")
            found = _latest(context, found)
        yield found
    finally:
        if fd >= 0:
            os.close(fd)


def _begin(context: Context, run: Run, image: StepImage, nodes: str) -> tuple[Caches, int]:
    """Write down new caches, and return them with their locked directory."""
    if len(run.others) >= MOST:
        raise StepHasNoCaches(problem=f"the job has caches for {MOST} more images on this node, so this one has none")
    new = Caches(
        key=os.urandom(4).hex(),
        image=image.digest,
        nodes=nodes,
        read_scopes=run.own.read_scopes,
        publish_scope=run.own.publish_scope,
        path=context.policy.paths.cache,  # containers see it there
    )
    topic = f"{run_of(run.cluster, run.job_id, run.restarts)}/{_TOPICS}"
    topics = [topic] if run.leads(new) and run.nodelist and topic not in run.topics else []
    begun = new._replace(facts={"image": image.digest})
    state.save(context.paths.state, run._replace(others=[*run.others, begun], topics=[*run.topics, *topics]))
    with opened_dir(run.directory) as base:
        ensure_dir(CACHES, 0o755, base)
        with opened_dir(CACHES, base) as top:
            os.mkdir(new.key, 0o711, dir_fd=top)
    fd = _opened(run.directory_of(new))
    try_flock(fd)
    return new, fd


def _read(context: Context) -> Run:
    return state.load(context.paths.state, context.run.job_id) or context.run


def _opened(directory: str) -> int:
    """Open the directory of caches; -1 if their maker has not come to make it."""
    with suppress(FileNotFoundError), opened_dir(directory) as fd:
        return os.dup(fd)
    return -1


def _latest(context: Context, found: Caches) -> Caches:
    """Return what has become of caches that somebody made; whoever undid them left them as they were begun."""
    with locked_run(context) as run:
        return next((other for other in run.others if other.key == found.key), found)


def _make(context: Context, image: StepImage, new: Caches, namespaces: list[int], barrier: Barrier | None) -> None:
    """Seed caches, and show them to the job's steps; undo them after an error."""
    started, run, directory = time.monotonic(), context.run, context.run.directory_of(new)
    audit = context.audit.bind(step=seed.NAME)
    audit.say(of=image.reference)
    context = context._replace(audit=audit)
    options = seed.Options(
        tuple(run.own.seeded),
        run.own.facts.get("declared", ""),
        run.fresh,
        barrier,
        cache=run.own.facts.get("cache", ""),
        attach=lambda profiles: _attach(context, directory, profiles, namespaces),
    )
    try:
        _build(directory, options.profiles)
        filled, degraded = seed.fill(context, new, options)
        for failure in degraded:
            audit.failed(failure)
        if not filled.path:  # the user's quota
            raise degraded[0]
        with locked_run(context._replace(deadline=after(LOCK_S))) as now:
            state.save(context.paths.state, now.with_caches({new.key: filled}))
            _show(context, image, new.key)
    except (WarmstartError, OSError):
        _undo(context, new)
        raise
    finally:
        audit.took(seed.NAME, started)


def _build(directory: str, profiles: tuple[str, ...]) -> None:
    """Make the directories that seeding finds in a run's directory; they are root's until it gives them away."""
    with opened_dir(directory) as base:
        for name in ("cache", *(f"cache/{profile}" for profile in profiles)):
            os.mkdir(name, 0o700, dir_fd=base)


def _attach(context: Context, directory: str, profiles: list[str], namespaces: list[int]) -> None:
    """Show the overlays of caches in other mount namespaces. Raises `OSError`."""
    for namespace in namespaces:
        try:
            client.attach_in_namespace(
                namespace,
                directory,
                [f"cache/{profile}" for profile in profiles],
                context.deadline.within(ATTACHING_S),
            )
        except WorkerSilent as error:
            raise TimeoutError(str(error)) from error


def _show(context: Context, image: StepImage, key: str, more: str = "") -> None:
    """Tell the job's later steps of the caches, so that they need not ask. Raises `FileSystemBroken` or `StateFull`."""
    name = view.caches_of(image.reference, image.nodes)
    view.add(context.paths.view, context.run, name, f"{key} {image.path}\n{more}")


def _undo(context: Context, one: Caches) -> None:
    """Take down what there is of caches. What stays goes with the run."""
    from warmstart.seed import overlay_end

    run = context.run
    with suppress(OSError), opened_dir(f"{run.directory}/{CACHES}") as top:
        with suppress(FileNotFoundError), opened_dir(one.key, top) as fd:
            overlay_end.take_down(fd)
        remove_tree(top, one.key, after(REMOVAL_S))
    with suppress(WarmstartError), locked_run(context._replace(deadline=after(LOCK_S))) as now:
        others = [other for other in now.others if other.key != one.key]
        state.save(context.paths.state, now._replace(others=others))
