"""The answer to one step that asks for an image: whose step it is, what the policy says, and the image. Runs as root.

    one line from the step ─▶ which process asks? ─▶ its step daemon: the job ─▶ this node's run of the job
                                                                                           │
      the answer: one line ◀─ obtained and waited for, as by a prolog (`steps.image`) ◀─ policy

The line has the image's reference and the step's nodes: nothing that a user writes says who the user is, or which job
this is, and of nodes only those of that job count (`caches.own_nodes`). The kernel names uid and process of the other
end; one of that process's parents must be a step daemon of root's; and a run of that daemon's job must be that
uid's. So what has left its step, and what comes from outside of jobs, gets no answer but ALONE.

A run shows that the prolog enforced, and has the job's verified attributes. A job for which the prolog had nothing
to do has none: of it root knows the user and the node, so what rules grant by other attributes it does not have.
"""

from __future__ import annotations

import os
import pwd
import signal
import socket
import sys
import time
import traceback
from contextlib import suppress
from typing import NamedTuple

from warmstart import plan, view
from warmstart.errors import WarmstartError
from warmstart.host.deadline import after
from warmstart.images.agreed import HeadImage
from warmstart.images.reference import Reference, check_allowed, parse
from warmstart.images.store import layout
from warmstart.job import Job
from warmstart.paths import Installation
from warmstart.policy.keys import Policy
from warmstart.policy.match import OBSERVE
from warmstart.run import state
from warmstart.run.state import Run
from warmstart.session import Session, open_session
from warmstart.step_image import StepHasNoCaches, StepImage
from warmstart.steps import image, seed
from warmstart.steps.contract import Context
from warmstart.store.barrier import Barrier
from warmstart.wings.step_images import caches as step_caches
from warmstart.wings.step_images.asking import (
    ALONE,
    ANSWER_S,
    FAILED,
    GOES_ON,
    LONGEST_LINE,
    NO_CACHES,
    THERE,
    WAITS,
    Answer,
    peer,
)
from warmstart.wings.step_images.job import claimed_node, daemon_of, other_namespaces

READ_S = 2.0  # for the line
PREPARE_S = 20  # until it is known how long to wait
ROOT = 0


class Question(NamedTuple):
    """What a step asks for."""

    reference: Reference
    nodes: str  # the step's, as it says
    pid: int  # who asks


class Asker(NamedTuple):
    """Who asks: a step of a job on a node of this host."""

    node: str
    job_id: int
    uid: int
    run: Run | None  # None: the prolog had nothing to do


def main(installation: Installation) -> int:
    """Answer the connection on descriptor 0. Return the exit status."""
    os.umask(0o022)
    signal.alarm(PREPARE_S)
    with socket.socket(fileno=0) as line:
        text = _read(line)
        if text is None:
            return 0
        try:
            said = _answer(installation, text, peer(line))
        except WarmstartError as error:
            said = _failed(error)
        except Exception:  # noqa: BLE001 - a bug: the step goes on as without this program
            traceback.print_exc(file=sys.stderr)
            said = Answer(ALONE)
        line.settimeout(READ_S)
        with suppress(OSError):  # the step has gone, or does not read
            line.sendall(said.encode())
    return 0


def _read(line: socket.socket) -> str | None:
    """Return one line; None if it does not come in time, or is none. Descriptors that come with it are dropped."""
    end, data = time.monotonic() + READ_S, b""
    while not data.endswith(b"\n"):
        line.settimeout(max(end - time.monotonic(), 0.001))
        try:
            piece = line.recv(LONGEST_LINE + 1 - len(data))
        except OSError:
            return None
        data += piece
        if not piece or len(data) > LONGEST_LINE:
            return None
    return data[:-1].decode("utf-8", "replace")


def _answer(installation: Installation, text: str, credentials: tuple[int, int, int]) -> Answer:
    pid, uid, _ = credentials
    asker = None if installation.is_off or uid == ROOT else find_asker(installation, pid, uid)
    if asker is None:
        return Answer(ALONE)
    name, _, nodes = text.partition(" ")
    question = Question(parse(name), nodes, pid)
    with open_session(installation, "step-images", asker.node) as opened:
        signal.alarm(int(opened.policy.images.wait + ANSWER_S))
        granted = _granted(opened.policy, asker)
        if granted is None:
            return Answer(ALONE)
        job, run = granted
        opened.audit.correct(**run.job_labels)
        session = opened
        try:
            return _obtain(session, job, run, question)
        except WarmstartError as error:
            session.failed(image.NAME, error)
            return _failed(error)


def _failed(error: WarmstartError) -> Answer:
    return Answer(FAILED, kind=error.kind, code=error.code, text=str(error), hint=error.hint)


def find_asker(installation: Installation, pid: int, uid: int) -> Asker | None:
    """Return whose step a process of `uid` is; None if it is in no step of that user's, or of a job that must fail."""
    daemon = daemon_of(pid)
    nodes = sorted(installation.nodes(), key=claimed_node(pid).__ne__)
    if daemon is None or not nodes:
        return None
    job_id = daemon.job_id
    for node in nodes:
        paths = installation.node(node)
        try:
            run = state.load(paths.state, job_id)
        except WarmstartError:
            return None
        if run is not None:
            is_served = run.uid == uid and view.read(paths.view, run.view_id, view.VERDICT) is None
            return Asker(node, job_id, uid, run) if is_served else None
    return Asker(nodes[0], job_id, uid, None)


def _granted(policy: Policy, asker: Asker) -> tuple[Job, Run] | None:
    """Return the job as far as it is known, and its run; None if warmstart leaves it alone."""
    if asker.run is not None:
        # Without a workspace it is one that no rule matches, or that was submitted with --no-warm.
        return (_job(asker.run), asker.run) if asker.run.workspace else None
    if OBSERVE in (policy.mode, *(rule.mode for rule in policy.rules)):
        return None  # it may have been observed
    try:
        account = pwd.getpwuid(asker.uid)
    except KeyError:
        return None
    run = Run(
        run_id=os.urandom(4).hex(),
        job_id=asker.job_id,
        view_id=asker.job_id,
        uid=asker.uid,
        gid=account.pw_gid,
        user=account.pw_name,
        account="",
        partition="",
        cluster="",
        node=asker.node,
    )
    job = _job(run)
    return None if plan.grant(policy, job).reason else (job, run)


def _job(run: Run) -> Job:
    return Job(
        id=run.job_id,
        uid=run.uid,
        gid=run.gid,
        user=run.user,
        node=run.node,
        cluster=run.cluster,
        partition=run.partition,
        account=run.account,
        nodelist=run.nodelist,
        het_id=None,
        comment="",
        pyxis_image="",
        restarts=run.restarts,
    )


def _obtain(session: Session, job: Job, run: Run, question: Question) -> Answer:
    policy, reference = session.policy, question.reference
    check_allowed(reference, policy.images.allowed)
    # A private image is copied into the job's workspace.
    private = plan.private_images(policy, job, [reference]) if run.workspace else ()
    audit = session.audit.bind(step=image.NAME)
    context = Context(policy, session.paths, run, audit, after(policy.images.wait + ANSWER_S), session.store)
    barrier = plan.barrier_of(job)
    done = image.run(context, _options(context, reference, private, barrier))
    with_image = done.run or run
    path = with_image.images[reference.canonical()]
    notices, caches = list(done.notices), None
    store = dict(private).get(reference, "")
    found = StepImage(reference.canonical(), with_image.own.image, path, question.nodes, store)
    if run.own.path and run.own.seeded:
        signal.alarm(int(policy.seed.fetch_budget + step_caches.BEYOND_FETCHING_S + ANSWER_S))
        try:
            context = context._replace(deadline=after(policy.seed.fetch_budget + ANSWER_S))
            caches = _caches(context, found, barrier and barrier._replace(waits=_say), question.pid)
        except (WarmstartError, OSError) as error:
            why = error if isinstance(error, WarmstartError) else StepHasNoCaches(problem=error.strerror or str(error))
            session.failed(seed.NAME, why)
            notices.append(f"the container has no caches of its own: {why}")
    if run.own.path:  # last: a node may take long, and other nodes need not wait for it
        signal.alarm(int(layout.UNPACK_S + ANSWER_S))
        context = context._replace(deadline=after(layout.UNPACK_S + ANSWER_S))
        with suppress(OSError, WarmstartError), other_namespaces(question.pid, run.job_id) as namespaces:
            step_caches.provide_by_wings(context, found, namespaces, caches, layout.UNPACK_S)
    text = "".join(f"{line}\n" for line in notices)
    return Answer(THERE, path, text=text, caches=NO_CACHES if caches is None else caches)


def _options(
    context: Context, reference: Reference, private: tuple[tuple[Reference, str], ...], barrier: Barrier | None
) -> image.Options:
    """Return how to find an image: it is what it was for this job before, here or on another node."""
    options = image.Options((reference,), private=private)
    run, name = context.run, reference.canonical()
    path = run.images.get(name, "")
    is_known = os.path.dirname(path) == f"{context.policy.paths.store}/{layout.IMAGES}"
    said = {name: HeadImage(layout.digest_of(os.path.basename(path)))} if is_known else {}
    if not reference.tag or not (barrier or said):
        return options
    place = step_caches.barrier_about(run, name, run.nodelist or run.node)
    return options._replace(barrier=place, agreed=frozenset({reference}), of_step=True, said=said)


def _caches(context: Context, image: StepImage, barrier: Barrier | None, pid: int) -> str:
    """Return which caches a step's container has."""
    with other_namespaces(pid, context.run.job_id) as namespaces:
        return step_caches.provide(context, image, namespaces, barrier)


def _say(waits: bool) -> None:
    """Tell the server whether this process waits for other nodes."""
    with suppress(OSError):  # nobody listens
        os.write(1, WAITS if waits else GOES_ON)
