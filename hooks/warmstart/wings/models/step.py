"""Step `model`: let the job read the large files of a model from copies on its node's disk (docs/wings/models.md).

If the node has copies of all of them as they are now, each is shown over its file, at its own path, by the policy's
way to the constant path: other files, and those that the job adds, are the shared file system's. Otherwise the job
reads the model there, and a second job within a day has it copied. Nodes need not agree: a slow read breaks no rank. No
failure here costs the job more than the copies.
"""

from __future__ import annotations

import os
import time

from warmstart.errors import WarmstartError
from warmstart.host import linux
from warmstart.host.files import opened_dir
from warmstart.host.identity import Identity, WorkerSilent
from warmstart.lean import TYPE_CHECKING, NamedTuple, partial
from warmstart.paths import NOTHING, Shown
from warmstart.policy.shared import granted
from warmstart.queue import Asker
from warmstart.request import COMMENT, NO_PATH, RequestInvalid
from warmstart.run import mounted
from warmstart.run.shown import show
from warmstart.runner import Step
from warmstart.steps.contract import Context, Outcome
from warmstart.wings.models import requests, shelf
from warmstart.wings.models.client import ModelClient
from warmstart.wings.models.look import Look, ModelUnusable, shared_by, whose_of
from warmstart.wings.models.offered import KEY, WAYS, WORD, offered
from warmstart.wings.models.requests import ModelRequest

if TYPE_CHECKING:
    from warmstart.job import Job
    from warmstart.policy.keys import Policy
    from warmstart.policy.match import Grant
    from warmstart.policy.shared import SharedPath
    from warmstart.request import Request

NAME = "model"
LOOK_S = 5.0
MOST = 8  # models of a job
MOST_LISTED = 192 << 10  # bytes of lines; readers of a run's list take 256 KiB (packaging/spank/shown.c)
MOST_BOUND = 56 << 10  # bytes of what Apptainer is told, in a variable of at most 64 KiB
_BESIDE = 128  # bytes of a line beside the file's path, at most
_IN_RUN = len("/mounted/model-0/tree/000::ro,")
NO_WAY = (
    "model {model} is read from the shared file system: this node has no way to show copies to a job "
    "(policy: constant_path)"
)
NO_ROOM = (
    "model {model} is read from the shared file system: the job has no workspace on this node, where copies would be "
    "shown"
)
# Why a job reads the model itself; docs/wings/models.md explains them.
FIRST, COPYING, TOO_MANY = "first", "copying", "too-many-files"
MOST_NAMED = 3  # of what has no copy, in a job's output
_WHY = {
    FIRST: "it is copied to this node when a job names it here again within a day",
    COPYING: "it is being copied to this node for later jobs",
    TOO_MANY: "the job's models have more large files, or longer paths, than can be shown",
}


class Wanted(NamedTuple):
    """The models of a job."""

    models: list[str]
    shared: tuple[SharedPath, ...]  # of which many have one copy


class _Asked(NamedTuple):
    """One model of a job."""

    model: str
    number: int
    left: int  # bytes that its lines may have
    shared: tuple[SharedPath, ...]


class _Found(NamedTuple):
    """What the job reads at a model's path."""

    look: Look | None
    is_copy: bool
    reason: str  # "" for copies
    outlook: str = ""  # in words
    failure: WarmstartError | None = None
    rule: str = ""  # by which many have one copy


def planned(policy: Policy, job: Job, grant: Grant, requested: Request) -> Step | None:
    """Return the step, which says so if this node shows the job no copies. Raises `RequestInvalid`."""
    return Step(NAME, partial(_show, wanted=wanted(policy, job, grant, requested)), optional=True)


def wanted(policy: Policy, job: Job, grant: Grant, requested: Request) -> Wanted:
    """Return which models a job reads. Raises `RequestInvalid`."""
    return Wanted(asked(requested), granted(policy, job, grant, KEY))


def asked(requested: Request) -> list[str]:
    """Return the models that the job names. Raises `RequestInvalid`."""
    words = [*dict.fromkeys(requested.words[WORD].split(" "))]
    for word in words:
        if not word.startswith("/") or not word.strip("/") or ".." in word.split("/"):
            raise RequestInvalid(where=COMMENT, word=f"{WORD}={word}"[:80], also=NO_PATH)
    if len(words) > MOST:
        raise RequestInvalid(where=COMMENT, word=f"{WORD}={words[MOST]}"[:80])
    return [word.rstrip("/") for word in words]


def _show(context: Context, wanted: Wanted) -> Outcome:
    why = NO_WAY if context.policy.constant_path not in WAYS else "" if context.run.own.path else NO_ROOM
    if why:
        return Outcome(notices=tuple(why.format(model=model) for model in wanted.models))
    return run(context, wanted)


def run(context: Context, wanted: Wanted) -> Outcome:
    """Show the job its models, as far as this node has copies of them."""
    detail: dict[str, object] = {}
    failures, notices = [], []
    left = MOST_BOUND if context.policy.constant_path == "containers" else MOST_LISTED
    context = context._replace(deadline=context.deadline.within(LOOK_S))  # for all: one file system may have them
    for number, model in enumerate(wanted.models):
        started = time.monotonic()
        found = _one(context, _Asked(model, number, left, wanted.shared))
        left -= _listed(context, found.look) if found.look and found.is_copy else 0
        way = "copy" if found.is_copy else "itself"
        context.audit.add(
            "models",
            model=found.look.path if found.look else model,
            way=way,
            reason=found.reason,
            rule=found.rule,
            files=len(found.look.files) if found.look else 0,
            bytes=found.look.size if found.look else 0,
            ms=round((time.monotonic() - started) * 1000, 3),
        )
        detail[model] = _told(found)
        names = ", ".join(found.look.left_out[:MOST_NAMED]) if found.look else ""
        left_out = [f"no copies of what lies below none of models.prefixes, such as {names}"] if names else []
        if found.failure:
            failures.append(found.failure)
        elif not found.is_copy:
            told = "; ".join([found.outlook, *left_out])
            notices.append(f"model {model} is read from the shared file system: {told}")
        elif left_out:
            notices.append(f"model {model}: {left_out[0]}")
    return Outcome(detail=detail, degraded=failures, notices=tuple(notices))


def _one(context: Context, asked: _Asked) -> _Found:
    """Show one model, if there are copies of it."""
    model = asked.model
    try:
        return _shown_or_asked(context, asked)
    except WorkerSilent as error:
        failure = ModelUnusable(model=model, problem=f"its file system: {error.fields['problem']}")
        return _Found(None, False, failure.code, failure=failure)
    except WarmstartError as error:
        return _Found(None, False, error.code, failure=error)
    except OSError as error:
        failure = ModelUnusable(model=model, problem=f"its copies: {error.strerror}")
        return _Found(None, False, failure.code, failure=failure)


def _shown_or_asked(context: Context, asked: _Asked) -> _Found:
    run, policy = context.run, context.policy
    client = ModelClient(Identity(run.user, run.uid, run.gid), asked.model)
    seen = client.look(offered(policy).prefixes, context.deadline)
    if _listed(context, seen) > asked.left:
        return _Found(seen, False, TOO_MANY, _WHY[TOO_MANY])
    shared, unshared = shared_by(seen, asked.shared)
    rule = shared.rule if shared else ""
    where, name = shelf.path_of(policy, run.node), seen.key(whose_of(shared, run.uid))
    copies = shelf.take(where, name, context.paths, run, context.deadline)
    if copies is not None:
        try:
            _mount(context, seen, copies, asked.number)
        finally:
            os.close(copies)
        return _Found(seen, True, "", unshared and f"this user's own: {unshared}", rule=rule)
    if not shelf.is_second(policy, run.node, name):
        return _Found(seen, False, FIRST, _WHY[FIRST], rule=rule)
    problem = requests.ask(context.paths, ModelRequest(asked.model, run.gid, Asker.of(run), shared))
    outlook = f"it was not copied: {problem}" if problem else _WHY[COPYING]
    return _Found(seen, False, COPYING, outlook, rule=rule)


def _mount(context: Context, seen: Look, copies: int, number: int) -> None:
    """Mount a set where the job's user alone can get to it, and list each copy over its file."""
    run = context.run
    with opened_dir(run.directory) as base:
        clone = linux.clone(copies)
        try:
            linux.restrict(clone)
            place = mounted.mount_for(base, f"{NAME}-{number}", clone, (run.uid, run.gid))
        finally:
            os.close(clone)
        for index, file in enumerate(seen.files):
            show(base, Shown("ro", "job", f"{place}/{index}", file.identity, file.path, NOTHING), run.uid)


def _listed(context: Context, seen: Look) -> int:
    """Return how many bytes the lines of a model's files may have, or what Apptainer is told of them."""
    is_bound = context.policy.constant_path == "containers"
    beside = len(context.run.directory) + _IN_RUN if is_bound else _BESIDE
    return sum(len(os.fsencode(file.path)) + beside for file in seen.files)


def _told(found: _Found) -> str:
    """Return what `explain` says of a model."""
    if found.look and found.is_copy:
        told = f"read from copies of {len(found.look.files)} files, {found.look.size:,} bytes"
        whose = f"rule {found.rule}" if found.rule else found.outlook
        return f"{told} ({whose})" if whose else told
    return f"read from the shared file system: {found.reason if found.failure else found.outlook}"
