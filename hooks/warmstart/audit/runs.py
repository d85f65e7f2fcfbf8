"""Runs of hooks, put together from their audit events. One run: what one hook did for one job on one node.

What a hook does for another job than its own is a run of that job (`done_by`).

A run's events follow each other in a log, because journals are moved whole. Memory is bounded all the same: at most
`MOST_OPEN` runs are put together at a time; an older one is given as unfinished.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import cache
from typing import NamedTuple, TypeVar, get_type_hints

from warmstart.audit import events, values
from warmstart.audit.line import Line

MOST_OPEN = 1024
PROLOG, EPILOG = "prolog", "epilog"
IMPORTED = "imported"
IMAGE_EVENTS = {
    events.IMAGE_REUSED: "reused",
    events.IMAGE_WAITED: "waited",
    events.IMAGE_IMPORTED: IMPORTED,
    events.IMAGE_STALE: "stale",
}
# Events that explain a result and are no failure of a step, in words; those of wings have theirs in `events.py`.
REMARKS: dict[events.Event, str] = {
    events.PROFILE_LEFT_OUT: "is not among the job's profiles",
    events.OVERLAY_FAILED: "could not be mounted; extracted instead",
    events.JOB_UNINFORMED: "rules that need what slurmd does not tell of the job granted nothing",
    events.BUNDLE_REFUSED: "a bundle was refused",
    events.BUNDLE_LEFT_OUT: "a bundle was left out",
    events.BUNDLE_SPOOLED: "the store did not take the bundle; it is kept on the node until maintenance",
    events.BUNDLE_DROPPED: "a bundle on the node was dropped",
    events.HARVEST_LEFT_OUT: "not harvested",
    events.HARVEST_DEFERRED: "the epilog had no time or no space; maintenance harvests it",
    events.HARVEST_DROPPED: "the deferred harvest was dropped",
    events.HARVEST_MERGED: "published without these nodes, which had not handed in all by then",
    events.IMAGE_DAMAGED: "the file in the store was damaged; it was imported again",
    events.IMAGE_LOCKLESS: "was imported without a lock",
    events.POLICY_REJECTED: "the policy's files are wrong",
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
    events.IMAGE_UNPACK_FAILED: FAILED,
}
# The step of failures whose events name none.
_STEPS = {events.IMAGE_IMPORT_FAILED: "import", events.IMAGE_UNPACK_FAILED: "unpack"}
KILLED = "killed"  # why a hook crashed, if it was no bug
OBSERVED = "it is only observed (mode: observe)"
_WITHOUT_RUN = ("", "", "", 0)
# Fields that lines have under another name.
_KEYS = {
    "building": "building_ms",
    "died": "died_ms",
    "ended": "outcome",
    "fetched": "fetched_bytes",
    "from_bundles": "bundle_ids",
    "granted_images": "images",
    "granted_profiles": "profiles",
    "reference": "image",
    "seconds": "duration_ms",
    "size": "bytes",
    "waited": "waited_ms",
}
_Part = TypeVar("_Part")


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
    retired: int = 0  # seeded entries that were removed, which later jobs are not given
    retired_examples: tuple[str, ...] = ()  # names of some of them
    own: tuple[str, ...] = ()  # variables of the profile that the job set itself, by its word
    running: bool = False  # whether the job ran
    building: float = 0.0  # seconds in which it made entries


class Remark(NamedTuple):
    """An event that explains a result and is no failure of a step."""

    event: str
    about: str  # the profile, image or bundle
    reason: str


class Made(NamedTuple):
    """A bundle that came into the store, and of which others its entries are."""

    bundle: str
    replaces: tuple[str, ...] = ()


@dataclass(slots=True)
class Run:
    """One run of one hook, or of maintenance."""

    hook: str
    run_id: str
    node: str
    cluster: str = ""
    job: int = 0
    uid: int = 0
    user: str = ""
    done_by: str = ""  # "" unless it is what another job's hook, or maintenance, did for this job
    partition: str = ""
    account: str = ""
    first: str = ""  # `ts` of its first event, and of its last
    last: str = ""
    outcome: str = ""  # "ok", "ended", "failed", "crashed"; "" while it is not finished
    ended: str = ""  # the same as its last event has it, which of a crash it may not
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
    unpacked: int = 0  # bytes of images that were read from the store to be unpacked
    seedings: dict[str, Seeding] = field(default_factory=dict)
    warm: list[str] = field(default_factory=list)
    cold: dict[str, str] = field(default_factory=dict)  # profile → reason
    agreed: dict[str, Cold] = field(default_factory=dict)  # of those, by profile: what the job's nodes agreed on
    facts: dict[str, str] = field(default_factory=dict)
    set_of: str = ""  # the image, which only a step names, whose caches these are; "" of a prolog
    look: int = 0  # when its job is harvested next while it runs, in seconds since the epoch
    at_end: str = ""  # … or why it is at its end alone
    died: float = 0.0  # seconds after which its job died, if it began warm
    told: list[tuple[str, str, str]] = field(default_factory=list)  # step of a wing, what it tells of, and the text
    counted: Counter[str] = field(default_factory=Counter)  # of wings: a line of reports → sum
    harvests: list[Harvest] = field(default_factory=list)
    handed_in: dict[str, int] = field(default_factory=dict)  # profile → entries, to be published with other nodes'
    rejected: dict[str, dict[str, int]] = field(default_factory=dict)  # profile → reason → entries
    published: Counter[str] = field(default_factory=Counter)  # profile → bytes of bundles
    made: list[Made] = field(default_factory=list)
    failures: list[Failure] = field(default_factory=list)
    remarks: list[Remark] = field(default_factory=list)
    crashes: list[str] = field(default_factory=list)  # "killed", or "" for a bug
    counts: Counter[str] = field(default_factory=Counter)  # all events, by name


def kind_of(reason: str) -> str:
    """Return why a profile was cold without what may follow the reason, of which there may be many."""
    return reason.partition(":")[0]


def runs(lines: Iterable[Line]) -> Iterator[Run]:
    """Yield each run when its last event has been read; unfinished ones at the end."""
    pending: dict[tuple[str, str, str, int], Run] = {}
    for line in lines:
        other_job = values.count(line, "job_id") if "done_by" in line else 0
        key = (values.text(line, "node"), values.text(line, "hook"), values.text(line, "run_id"), other_job)
        if key == _WITHOUT_RUN:
            continue
        run = pending.get(key)
        if run is None:
            run = pending[key] = Run(hook=key[1], run_id=key[2], node=key[0], first=values.text(line, "ts"))
            if len(pending) > MOST_OPEN:
                yield pending.pop(next(iter(pending)))
        _add(run, line)
        if line.get("event") == events.HOOK_FINISHED or run.crashes[-1:] == [KILLED]:
            for own in [own for own in pending if own[:3] == key[:3]]:
                yield pending.pop(own)
    yield from pending.values()


def _add(run: Run, line: Line) -> None:
    """Add one event to its run."""
    run.last = values.text(line, "ts") or run.last
    run.cluster = values.text(line, "cluster") or run.cluster
    run.user = values.text(line, "user") or run.user
    run.uid = values.count(line, "uid") or run.uid
    run.job = values.count(line, "job_id") or run.job
    if doer := values.mapping(line, "done_by"):
        job = values.count(doer, "job_id")
        run.done_by = f"{values.text(doer, 'hook')} of job {job}" if job else values.text(doer, "hook")
    event = events.Event(values.text(line, "event"))
    run.counts[event] += 1
    if event in IMAGE_EVENTS:
        run.images.append(_read(ImageUse, line, how=IMAGE_EVENTS[event]))
    elif event in _DEGREES:
        step = _STEPS.get(event) or values.text(line, "step") or run.hook
        run.failures.append(_read(Failure, values.mapping(line, "error"), degree=_DEGREES[event], step=step))
    elif event in REMARKS and line.get("missing") != []:  # nothing is to be said of a job that was merged as a whole
        run.remarks.append(_remark(event, line))
    elif event in _ADD:
        _ADD[event](run, line)
    if event in (events.STEP_FINISHED, events.STEP_FAILED) and (step := values.text(line, "step")):
        run.steps[step] = max(run.steps.get(step, 0.0), values.seconds(line))


def _read(kind: Callable[..., _Part], line: Line, **given: object) -> _Part:
    """Return a part of a run: the values that a line has for its fields, or that are given."""
    return kind(**given, **{name: read(line, key) for name, (read, key) in _fields(kind).items() if name not in given})


def _take(run: Run, line: Line, *names: str) -> None:
    """Give these fields of a run the values that a line has for them."""
    for name in names:
        read, key = _fields(Run)[name]
        setattr(run, name, read(line, key))


@cache
def _fields(kind: object) -> dict[str, tuple[values.Reader, str]]:
    """Return how each field is read, and what lines call it."""
    hints = get_type_hints(kind)
    return {name: (values.READERS[of], _KEYS.get(name, name)) for name, of in hints.items() if of in values.READERS}


def _add_unpacked(run: Run, line: Line) -> None:
    run.unpacked += values.count(line, "fetched_bytes")


def _add_end(run: Run, line: Line) -> None:
    _take(run, line, "seconds", "ended")
    run.outcome = run.outcome or run.ended


def _add_crash(run: Run, line: Line) -> None:
    run.outcome = "crashed"
    run.crashes.append(values.text(line, "reason"))


def _add_plan(run: Run, line: Line) -> None:
    run.is_planned = True
    _take(run, line, "head", "asked", "rules", "excluded", "granted_images", "granted_profiles")


def _add_observed(run: Run, line: Line) -> None:
    _add_plan(run, line)
    run.head = False  # it is no start of a job
    refused = values.text(values.mapping(line, "refused"), "reason")
    run.excluded = f"{OBSERVED}, and would be refused: {refused}" if refused else run.excluded or OBSERVED


def _add_step(run: Run, line: Line) -> None:
    step = values.text(line, "step")
    if step == "seed":
        _take(run, line, "warm", "cold", "facts")
        run.set_of = values.text(line, "image")
    if "look" in line or "at_end" in line:
        _take(run, line, "look", "at_end")
    if step == "release":
        _take(run, line, "died")
    for name, value in values.mapping(line, "told").items():
        run.told.append((step, name, ", ".join(map(str, value)) if isinstance(value, list) else str(value)))


def _add_agreed(run: Run, line: Line) -> None:
    _take(run, line, "head")
    cold = values.mapping(line, "cold")
    run.agreed = {profile: _read(Cold, values.mapping(cold, profile)) for profile in cold}


def _add_harvest(run: Run, line: Line) -> None:
    pairs = line.get("ignored_examples")
    examples = (str(pair[0]) for pair in pairs if isinstance(pair, list) and pair) if isinstance(pairs, list) else ()
    run.harvests.append(_read(Harvest, line, examples=tuple(examples)))


def _add_handed_in(run: Run, line: Line) -> None:
    profile = values.text(line, "profile")
    run.handed_in[profile] = run.handed_in.get(profile, 0) + values.count(line, "entries")


def _add_rejected(run: Run, line: Line) -> None:
    reasons = run.rejected.setdefault(values.text(line, "profile"), {})
    for reason, count in values.counts(line, "reasons").items():
        reasons[reason] = reasons.get(reason, 0) + count


def _add_published(run: Run, line: Line) -> None:
    profile, size = values.text(line, "profile"), values.count(line, "size")
    run.published[profile] += size
    run.made.append(_read(Made, line))
    if "entries" in line:  # spooled or handed in: its harvest had published nothing
        running = line.get("running") is True
        run.harvests.append(Harvest(profile, values.count(line, "entries"), 0, 0, size, 0.0, running=running))


_ADD: dict[events.Event, Callable[[Run, Line], None]] = {
    events.HOOK_STARTED: lambda run, line: _take(run, line, "partition", "account"),
    events.HOOK_FINISHED: _add_end,
    events.HOOK_CRASHED: _add_crash,
    events.JOB_PLANNED: _add_plan,
    events.JOB_OBSERVED: _add_observed,
    events.STEP_FINISHED: _add_step,
    events.CACHE_SEEDED: lambda run, line: run.seedings.update({values.text(line, "profile"): _read(Seeding, line)}),
    events.CACHE_AGREED: _add_agreed,
    events.IMAGE_UNPACKED: _add_unpacked,
    events.CACHE_HARVESTED: _add_harvest,
    events.BUNDLE_HANDED_IN: _add_handed_in,
    events.ENTRY_REJECTED: _add_rejected,
    events.BUNDLE_PUBLISHED: _add_published,
    events.BUNDLE_COMPACTED: lambda run, line: run.made.append(_read(Made, line)),
    events.ENTRY_PROMOTED: lambda run, line: run.made.append(
        Made(values.text(line, "published"), (values.text(line, "bundle"),))
    ),
}


def _remark(event: str, line: Line) -> Remark:
    error = values.mapping(line, "error")
    about = next((name for key in ("profile", "image", "bundle", "path") if (name := values.text(line, key))), "")
    about = (
        about
        or ", ".join(values.texts(line, "profiles") or values.texts(line, "missing"))
        or ("nothing was recorded" if line.get("lost") else "")
    )
    return Remark(event, about, values.text(line, "reason") or values.text(error, "reason"))
