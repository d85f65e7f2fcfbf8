"""Runs of hooks, put together from their audit events. One run: what one hook did for one job on one node.

What a hook does for another job than its own is a run of that job (`done_by`).

A run's events follow each other in a log, because journals are moved whole. Memory is bounded all the same: at most
`MOST_OPEN` runs are put together at a time; an older one is given as unfinished.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from warmstart.audit import events, values
from warmstart.audit.line import Line

MOST_OPEN = 1024
IMAGE_EVENTS = {
    events.IMAGE_REUSED: "reused",
    events.IMAGE_WAITED: "waited",
    events.IMAGE_IMPORTED: "imported",
    events.IMAGE_ADOPTED: "adopted",
    events.IMAGE_STALE: "stale",
}
# Events that explain a result and are no failure of a step, in words.
REMARKS = {
    events.JOB_REQUEUED: "the job went back into Slurm's queue",
    events.JOB_NOT_REQUEUED: "the job could not go back into Slurm's queue",
    events.PROFILE_LEFT_OUT: "is not among the job's profiles",
    events.TMPDIR_LEFT_OUT: "TMPDIR stays the user's: programs could not bind sockets in a path so long",
    events.OVERLAY_FAILED: "could not be mounted; extracted instead",
    events.SPEC_IGNORED: "the controller's spec of the job was not used",
    events.BUNDLE_REFUSED: "a bundle was refused",
    events.BUNDLE_LEFT_OUT: "a bundle was left out",
    events.BUNDLE_SPOOLED: "the store did not take the bundle; it is kept on the node until maintenance",
    events.BUNDLE_DROPPED: "a bundle on the node was dropped",
    events.HARVEST_LEFT_OUT: "not harvested",
    events.HARVEST_DEFERRED: "the epilog had no time or no space; maintenance harvests it",
    events.HARVEST_DROPPED: "the deferred harvest was dropped",
    events.HARVEST_MERGED: "published without these nodes, which had not handed in all by then",
    events.IMAGE_QUARANTINED: "the file in the store was damaged; it was quarantined",
    events.IMAGE_LOCKLESS: "was imported without a lock",
    events.IMAGE_LEFT_OUT: "another launcher's image was not adopted",
    events.POLICY_REJECTED: "the policy's files are wrong",
    events.STATE_FULL: "the disk of warmstart's state was full",
    events.TRUST_UNPROVEN: "a rule that needs a verified attribute granted nothing",
    events.RECORD_DAMAGED: "the job's record was damaged",
    events.RUN_SUPERSEDED: "an earlier run of the job was removed: it was requeued, or the node was started again",
}
REFUSED, DRAINED, FAILED = "refused", "drained", "failed"
_DEGREES = {
    events.JOB_REFUSED: REFUSED,
    events.NODE_DRAINED: DRAINED,
    events.STEP_FAILED: FAILED,
    events.IMAGE_IMPORT_FAILED: FAILED,
    events.TREE_PACK_FAILED: FAILED,
}
SAMPLED = "sampled"  # a profile that began cold on purpose (`steps.seed`), which counts as neither warm nor cold
OBSERVED = "it is only observed (mode: observe)"
_WITHOUT_RUN = ("", "", "", 0)


class Failure(NamedTuple):
    """An error of a run: `degree` says what came of it for the job or the node."""

    degree: str  # REFUSED, DRAINED or FAILED
    step: str
    code: str
    reason: str
    hint: str


class ImageUse(NamedTuple):
    """How a run got one image."""

    reference: str
    digest: str
    how: str  # a value of IMAGE_EVENTS
    size: int  # bytes
    seconds: float
    waited: float  # seconds, part of `seconds`


class TreeUse(NamedTuple):
    """How a job saw its tree."""

    path: str
    reason: str  # why it was the tree itself; "" for a copy
    fetched: int  # bytes
    left_out: int  # files that are not in the copy
    files: int  # files and directories that the copy has
    size: int  # of the copy, bytes


class Seeding(NamedTuple):
    """What one profile was seeded with."""

    profile: str
    way: str  # overlay | extraction
    entries: int
    bundles: int
    scopes: tuple[str, ...]
    fetched: int  # bytes
    seconds: float
    from_bundles: tuple[str, ...] = ()  # their ids


class Cold(NamedTuple):
    """Why a profile is cold on all nodes of a job, and for which nodes."""

    reason: str
    nodes: tuple[str, ...]


class Harvest(NamedTuple):
    """What one profile's harvest published."""

    profile: str
    entries: int
    known: int  # files of entries that were there already
    changed: int  # of `entries`, those that take the place of seeded ones
    size: int  # bytes
    seconds: float
    seeded: int = 0  # entries that the job had
    use: str = ""  # one of `profiles.contract.USES`; "" if it is not known yet
    akin: int = 0  # of `entries`, those that differ from a seeded one in a hash or a folder alone
    ignored: dict[str, int] = {}  # noqa: RUF012 - why files are in no entry → their number
    examples: tuple[str, ...] = ()  # paths of some of them
    truncated: str = ""  # why it ended early
    retired: int = 0  # seeded entries that the job removed, which later jobs are not given


class Remark(NamedTuple):
    """An event that explains a result and is no failure of a step."""

    event: str
    about: str  # the profile, image or bundle
    reason: str


@dataclass
class Run:
    """One run of one hook, or of maintenance."""

    hook: str
    run_id: str
    node: str
    cluster: str = ""
    job: int = 0
    user: str = ""
    done_by: str = ""  # "" unless it is what another job's hook, or maintenance, did for this job
    partition: str = ""
    account: str = ""
    first: str = ""  # `ts` of its first event, and of its last
    last: str = ""
    outcome: str = ""  # "ok", "failed", "crashed"; "" while it is not finished
    seconds: float = 0.0  # of the whole hook, once it is finished
    head: bool = False
    asked: dict[str, object] = field(default_factory=dict)
    rules: list[str] = field(default_factory=list)
    granted_images: list[str] = field(default_factory=list)
    granted_profiles: list[str] = field(default_factory=list)
    excluded: str = ""
    is_planned: bool = False
    steps: dict[str, float] = field(default_factory=dict)  # seconds
    images: list[ImageUse] = field(default_factory=list)
    seedings: dict[str, Seeding] = field(default_factory=dict)
    warm: list[str] = field(default_factory=list)
    cold: dict[str, str] = field(default_factory=dict)  # profile → reason
    agreed: dict[str, Cold] = field(default_factory=dict)  # of those, by profile: what the job's nodes agreed on
    facts: dict[str, str] = field(default_factory=dict)
    told: list[tuple[str, str, str]] = field(default_factory=list)  # step of a wing, what it tells of, and the text
    tree: TreeUse | None = None
    packed_trees: list[int] = field(default_factory=list)  # bytes of each copy
    harvests: list[Harvest] = field(default_factory=list)
    handed_in: dict[str, int] = field(default_factory=dict)  # profile → entries, to be published with other nodes'
    rejected: dict[str, dict[str, int]] = field(default_factory=dict)  # profile → reason → entries
    published: int = 0  # bytes of bundles
    removed: int = 0  # bundles that left the store
    evicted: int = 0  # images that left the store
    failures: list[Failure] = field(default_factory=list)
    remarks: list[Remark] = field(default_factory=list)


def runs(lines: Iterable[Line]) -> Iterator[Run]:
    """Yield each run when its last event has been read; unfinished ones at the end."""
    pending: dict[tuple[str, str, str, int], Run] = {}
    for line in lines:
        other_job = int(values.number(line, "job_id")) if "done_by" in line else 0
        key = (values.text(line, "node"), values.text(line, "hook"), values.text(line, "run_id"), other_job)
        if key == _WITHOUT_RUN:
            continue
        run = pending.get(key)
        if run is None:
            run = pending[key] = Run(hook=key[1], run_id=key[2], node=key[0], first=values.text(line, "ts"))
            if len(pending) > MOST_OPEN:
                yield pending.pop(next(iter(pending)))
        add(run, line)
        if line.get("event") == events.HOOK_FINISHED:
            yield pending.pop(key)
            for other in [other for other in pending if other[:3] == key[:3]]:
                yield pending.pop(other)
    yield from pending.values()


def add(run: Run, line: Line) -> None:
    """Add one event to its run."""
    run.last = values.text(line, "ts") or run.last
    run.cluster = values.text(line, "cluster") or run.cluster
    run.user = values.text(line, "user") or run.user
    run.job = int(values.number(line, "job_id")) or run.job
    if doer := values.mapping(line, "done_by"):
        job = int(values.number(doer, "job_id"))
        run.done_by = f"{values.text(doer, 'hook')} of job {job}" if job else values.text(doer, "hook")
    event = values.text(line, "event")
    if event in IMAGE_EVENTS:
        _add_image(run, line, IMAGE_EVENTS[events.Event(event)])
    elif event in _DEGREES:
        run.failures.append(_failure(_DEGREES[events.Event(event)], line))
    elif event in REMARKS and line.get("missing") != []:  # nothing is to be said of a job that was merged as a whole
        run.remarks.append(_remark(event, line))
    elif event in _ADD:
        _ADD[events.Event(event)](run, line)
    if event in (events.STEP_FINISHED, events.STEP_FAILED) and (step := values.text(line, "step")):
        run.steps[step] = max(run.steps.get(step, 0.0), _seconds(line))


def _add_start(run: Run, line: Line) -> None:
    run.partition, run.account = values.text(line, "partition"), values.text(line, "account")


def _add_end(run: Run, line: Line) -> None:
    run.outcome = run.outcome or values.text(line, "outcome")
    run.seconds = _seconds(line)


def _add_crash(run: Run, line: Line) -> None:  # noqa: ARG001 - the shape of the others
    run.outcome = "crashed"


def _add_plan(run: Run, line: Line) -> None:
    run.is_planned = True
    run.head = line.get("head") is True
    run.asked = values.mapping(line, "asked")
    run.rules, run.excluded = values.texts(line, "rules"), values.text(line, "excluded")
    run.granted_images, run.granted_profiles = values.texts(line, "images"), values.texts(line, "profiles")


def _add_observed(run: Run, line: Line) -> None:
    _add_plan(run, line)
    run.head = False  # it is no start of a job
    refused = values.text(values.mapping(line, "refused"), "reason")
    run.excluded = f"{OBSERVED}, and would be refused: {refused}" if refused else run.excluded or OBSERVED


def _add_step(run: Run, line: Line) -> None:
    if values.text(line, "step") == "seed":
        run.warm, run.cold = values.texts(line, "warm"), values.words(line, "cold")
        run.facts = values.words(line, "facts")
    for name, value in values.mapping(line, "told").items():
        text = ", ".join(map(str, value)) if isinstance(value, list) else str(value)
        run.told.append((values.text(line, "step"), name, text))


def _add_agreed(run: Run, line: Line) -> None:
    cold = values.mapping(line, "cold")
    told = {profile: values.mapping(cold, profile) for profile in cold}
    run.agreed = {
        profile: Cold(values.text(why, "reason"), tuple(values.texts(why, "nodes"))) for profile, why in told.items()
    }


def _add_image(run: Run, line: Line, how: str) -> None:
    waited = values.number(line, "waited_ms") / 1000
    names = (values.text(line, "image"), values.text(line, "digest"))
    run.images.append(ImageUse(*names, how, int(values.number(line, "bytes")), _seconds(line), waited))


def _add_seeding(run: Run, line: Line) -> None:
    profile = values.text(line, "profile")
    run.seedings[profile] = Seeding(
        profile,
        values.text(line, "way"),
        int(values.number(line, "entries")),
        int(values.number(line, "bundles")),
        tuple(values.texts(line, "scopes")),
        int(values.number(line, "fetched_bytes")),
        _seconds(line),
        tuple(values.texts(line, "bundle_ids")),
    )


def _add_harvest(run: Run, line: Line) -> None:
    entries, known, changed, size = (int(values.number(line, key)) for key in ("entries", "known", "changed", "bytes"))
    seeded, akin = (int(values.number(line, key)) for key in ("seeded", "akin"))
    profile, use, truncated = (values.text(line, key) for key in ("profile", "use", "truncated"))
    counted = (entries, known, changed, size, _seconds(line), seeded, use, akin)
    ignored = values.counts(line, "ignored")
    pairs = line.get("ignored_examples")
    examples = [str(pair[0]) for pair in pairs if isinstance(pair, list) and pair] if isinstance(pairs, list) else []
    run.harvests.append(
        Harvest(profile, *counted, ignored, tuple(examples), truncated, int(values.number(line, "retired")))
    )


def _add_handed_in(run: Run, line: Line) -> None:
    profile = values.text(line, "profile")
    run.handed_in[profile] = run.handed_in.get(profile, 0) + int(values.number(line, "entries"))


def _add_rejected(run: Run, line: Line) -> None:
    reasons = run.rejected.setdefault(values.text(line, "profile"), {})
    for reason, count in values.counts(line, "reasons").items():
        reasons[reason] = reasons.get(reason, 0) + count


def _add_published(run: Run, line: Line) -> None:
    size = int(values.number(line, "size"))
    run.published += size
    if "entries" in line:  # spooled or handed in: its harvest had published nothing
        entries = int(values.number(line, "entries"))
        run.harvests.append(Harvest(values.text(line, "profile"), entries, 0, 0, size, 0.0))


def _add_removed(run: Run, line: Line) -> None:  # noqa: ARG001 - the shape of the others
    run.removed += 1


def _add_evicted(run: Run, line: Line) -> None:  # noqa: ARG001 - the shape of the others
    run.evicted += 1


def _add_tree(run: Run, line: Line) -> None:
    numbers = (values.number(line, key) for key in ("fetched_bytes", "left_out", "files", "bytes"))
    run.tree = TreeUse(values.text(line, "tree"), values.text(line, "reason"), *map(int, numbers))


def _add_packed(run: Run, line: Line) -> None:
    run.packed_trees.append(int(values.number(line, "size")))


_ADD = {
    events.HOOK_STARTED: _add_start,
    events.HOOK_FINISHED: _add_end,
    events.HOOK_CRASHED: _add_crash,
    events.JOB_PLANNED: _add_plan,
    events.JOB_OBSERVED: _add_observed,
    events.STEP_FINISHED: _add_step,
    events.CACHE_SEEDED: _add_seeding,
    events.CACHE_AGREED: _add_agreed,
    events.TREE_SHOWN: _add_tree,
    events.TREE_PACKED: _add_packed,
    events.CACHE_HARVESTED: _add_harvest,
    events.BUNDLE_HANDED_IN: _add_handed_in,
    events.ENTRY_REJECTED: _add_rejected,
    events.BUNDLE_PUBLISHED: _add_published,
    events.BUNDLE_REMOVED: _add_removed,
    events.IMAGE_EVICTED: _add_evicted,
}


def _failure(degree: str, line: Line) -> Failure:
    error = values.mapping(line, "error")
    told = [values.text(error, key) for key in ("code", "reason", "hint")]
    return Failure(degree, values.text(line, "step") or values.text(line, "hook"), *told)


def _remark(event: str, line: Line) -> Remark:
    error = values.mapping(line, "error")
    about = next((name for key in ("profile", "image", "bundle", "path") if (name := values.text(line, key))), "")
    about = (
        about
        or ", ".join(values.texts(line, "profiles") or values.texts(line, "missing"))
        or ("nothing was recorded" if line.get("lost") else "")
    )
    return Remark(event, about, values.text(line, "reason") or values.text(error, "reason"))


def _seconds(line: Line) -> float:
    return values.number(line, "duration_ms") / 1000
