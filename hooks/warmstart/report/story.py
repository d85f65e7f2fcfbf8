"""The story of one job: what it asked, what it got, how long each part took, what was cold and why, what to do."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from warmstart.audit import events
from warmstart.audit.line import timestamp
from warmstart.audit.runs import (
    FAILED,
    PROLOG,
    REFUSED,
    REMARKS,
    Harvest,
    ImageUse,
    Remark,
    Run,
    Seeding,
)
from warmstart.policy.units import format_duration, format_size
from warmstart.profiles import contract, registry
from warmstart.report.counting import counted
from warmstart.report.summary import SettlingProfile, override_of, set_by

MOST_JOBS = 4096  # of a user's history
MOST_NAMED = 8  # nodes, in a line
MOST_NEW_NAMES = 4
EARLY_S = 300.0  # an end that may be the doing of what the job was given
SEED, HARVEST = "seed", "harvest"
IMPORT = "import"
NO_ENTRIES, REFUSED_BUNDLES = "nothing-published", "bundles-refused"
NO_ENTRY = "no file of an entry"

_COLD = {
    NO_ENTRIES: "cold: nothing is published for its facts in the scopes that this job reads",
    "asked-fresh": "cold: the job asked to start fresh",
    REFUSED_BUNDLES: "cold: what is published is not used",
    "bundles-left-out": "cold: what is published did not come to the node in time, or is too much to fetch",
    "nothing-proposed": "cold: the job's first node has nothing for it",
    "nodes-differ": "cold: the job's nodes differ in what its entries depend on",
    "no-vote": "cold: a node of the job was not ready in time",
    "head-silent": "cold: the job's first node was not heard of in time",
}
_ADVICE = {
    NO_ENTRIES: "{profiles}: nothing; what this job compiles is published when it ends, for the next ones with the "
    "same facts",
    REFUSED_BUNDLES: "{profiles}: administrators: `warmstart audit --event bundle.refused --job {job}`",
    "bundles-left-out": "{profiles}: what came stays, and the next job goes on with it; administrators: raise "
    "seed.fetch_budget in the policy, or let `warmstart maintain --store` compact the store",
}
_GOT = {
    "reused": "was in the store",
    "waited": "was imported meanwhile",
    "imported": "was imported",
    "stale": "was in the store: it is what its tag meant last, and may be out of date",
}


class Part(NamedTuple):
    """One part of a hook's work: how long it took, "" if nobody knows, and what came of it."""

    part: str
    time: str
    what: str


class Spread(NamedTuple):
    """What a profile is on some of the job's nodes, or what a fact is in which they differ."""

    name: str
    what: str
    nodes: tuple[str, ...]


class HookStory(NamedTuple):
    """One run of one hook."""

    hook: str
    node: str
    started: str  # `ts`
    seconds: float  # 0.0 while it is not finished
    outcome: str  # ok | ended | failed | crashed | unfinished
    parts: tuple[Part, ...]


class Story(NamedTuple):
    """What happened to one job."""

    job: int
    user: str
    cluster: str
    partition: str
    account: str
    nodes: tuple[str, ...]  # the first one of the job first, if that is known
    asked: tuple[str, ...]
    rules: tuple[str, ...]
    added: tuple[str, ...]  # images and profiles of the rules
    excluded: str
    refused: str  # why the job failed
    facts: dict[str, str]
    hooks: tuple[HookStory, ...]
    advice: tuple[str, ...]
    spread: tuple[Spread, ...] = ()  # over the nodes of a job that has several
    notices: tuple[str, ...] = ()  # what its output shows, where that is known


_NOTHING_NEW = {
    contract.HIT: "nothing new: the entries that it was given were used",
    contract.UNKNOWN: "nothing new; whether it used what it was given cannot be seen",
    contract.UNTOUCHED: "nothing new: not used; the script may set its variables itself",
    contract.AROUND: "nothing new: the job went around it",
}


class History:
    """What a user's other jobs published and built: for a cold profile, which fact was another one."""

    def __init__(self) -> None:
        self._facts: dict[int, dict[str, str]] = {}
        self._published: dict[str, int] = {}  # profile → the last job that published entries
        self._settling: dict[str, SettlingProfile] = {}
        self._names: dict[int, str] = {}  # job → what it called its caches, cache=NAME
        self._own: dict[str, set[int]] = {}  # variable → the jobs that set it themselves

    def add(self, run: Run) -> None:
        """Add a run of a job of this user."""
        if run.facts:
            self._facts[run.job] = run.facts
            if len(self._facts) > MOST_JOBS:
                del self._facts[next(iter(self._facts))]
        for harvest in run.harvests:
            if harvest.entries:
                self._published[harvest.profile] = run.job

    def add_uses(self, run: Run) -> None:
        """Add what a run of any job of this user says of whether its caches settle, in the order of the log."""
        if name := run.asked.get("cache"):
            self._names[run.job] = str(name)
        for harvest in run.harvests:
            settling = self._settling.setdefault(harvest.profile, SettlingProfile())
            settling.add(run.first, harvest, run.rejected.get(harvest.profile, {}))
            for variable in harvest.own:
                self._own.setdefault(variable, set()).add(run.job)

    def around(self, runs: Iterable[Run]) -> Iterable[str]:
        """Yield which variables a job set itself, how many jobs of its user did, and what a rule can say."""
        own = dict.fromkeys(name for run in runs for harvest in run.harvests for name in harvest.own)
        for variable in own:
            yield set_by(max(len(self._own.get(variable, ())), 1), "this user", variable)
        if own:
            yield override_of(own)

    def unsettled(self) -> Iterable[str]:
        """Yield each profile to which every job adds entries although it is seeded, and most likely why."""
        for profile, settling in self._settling.items():
            if settling.jobs:
                jobs = f"the last {settling.jobs} jobs that were seeded have each built new entries"
                yield f"{profile}: {jobs}; most likely {settling.why}"

    def new_names(self) -> Iterable[str]:
        """Yield that each of the last jobs gave its caches another name, if so: none found what another had built."""
        last = list(self._names.values())[-MOST_NEW_NAMES:]
        if len({*last}) == MOST_NEW_NAMES:
            told = f"the last {MOST_NEW_NAMES} jobs that gave their caches a name gave each another one"
            yield f"cache={last[-1]}: {told}"

    def difference(self, profile: str, facts: dict[str, str]) -> str:
        """Return how these facts differ from those for which entries were last published, "" if nobody knows."""
        job = self._published.get(profile, 0)
        known = self._facts.get(job, {})
        names = [name for name in _facts_of(profile) if known.get(name) != facts.get(name)] if known else []
        told = [f"{name} is {facts.get(name, '-')}, was {known.get(name, '-')}" for name in names]
        return f"entries of job {job} do not fit: {'; '.join(told)}" if told else ""


def tell(runs: Sequence[Run], history: History) -> Story:
    """Return the story of a job's runs, which are not empty."""
    ordered = sorted(runs, key=lambda run: (run.first, run.node))
    prologs = [run for run in ordered if run.hook == PROLOG]
    planned = next((run for run in prologs if run.is_planned), ordered[0])
    facts = next((run.facts for run in prologs if run.facts), {})
    last = sorted({run.node: run for run in prologs}.values(), key=lambda run: (not run.head, len(run.node), run.node))
    refused = next((failure for run in ordered for failure in run.failures if failure.degree == REFUSED), None)
    return Story(
        job=ordered[0].job,
        user=_last(run.user for run in ordered),
        cluster=_last(run.cluster for run in ordered),
        partition=_last(run.partition for run in ordered),
        account=_last(run.account for run in ordered),
        nodes=tuple(run.node for run in last),
        asked=tuple(_asked(planned.asked)),
        rules=tuple(planned.rules),
        added=(*planned.granted_images, *planned.granted_profiles),
        excluded=planned.excluded,
        refused=refused.reason if refused else "",
        facts=facts,
        hooks=tuple(_hook(run, history) for run in ordered),
        advice=(*_advice(ordered), *history.around(ordered), *history.unsettled(), *history.new_names()),
        spread=tuple(_spread({run.node: run for run in last})),
    )


def _asked(asked: dict[str, object]) -> Iterable[str]:
    for name, value in asked.items():
        if isinstance(value, list):
            yield f"{name} {', '.join(map(str, value))}"
        else:
            yield name if value is True else f"{name} {value}"


def _spread(by_node: Mapping[str, Run]) -> Iterable[Spread]:
    """Yield what each profile is on which nodes, and what differs between them; nothing of a job on one node."""
    if len(by_node) < 2:
        return
    for profile in dict.fromkeys(name for run in by_node.values() for name in (*run.warm, *run.cold)):
        yield from _grouped(profile, {node: _brief(run, profile) for node, run in by_node.items()})
    for fact in dict.fromkeys(name for run in by_node.values() for name in run.facts):
        found = {node: run.facts[fact] for node, run in by_node.items() if fact in run.facts}
        if len({*found.values()}) > 1:
            yield from _grouped(fact, found)


def _grouped(name: str, by_node: Mapping[str, str]) -> Iterable[Spread]:
    for what in dict.fromkeys(by_node.values()):
        yield Spread(name, what, tuple(node for node, own in by_node.items() if own == what))


def _brief(run: Run, profile: str) -> str:
    if profile in run.warm:
        return "warm"
    return f"cold: {run.cold[profile]}{_whose(run, profile)}" if profile in run.cold else "-"


def _whose(run: Run, profile: str) -> str:
    """Return for which nodes a profile is cold on all of the job's, "" if it is no matter of theirs."""
    agreed = run.agreed.get(profile)
    if agreed is None or not agreed.nodes:
        return ""
    return f", because of {named(agreed.nodes)}"


def named(nodes: Sequence[str]) -> str:
    """Return the first nodes, and how many more there are."""
    more = f" and {len(nodes) - MOST_NAMED} more" if len(nodes) > MOST_NAMED else ""
    return f"{', '.join(nodes[:MOST_NAMED])}{more}"


def _hook(run: Run, history: History) -> HookStory:
    parts: list[Part] = []
    for step, seconds in run.steps.items():
        whose = f"caches of image {run.set_of}" if step == SEED and run.set_of else ""
        parts.append(Part(step, format_duration(seconds), _problems(run, step) or whose))
        if step == SEED:
            parts += _profiles(run, history)
        if step == HARVEST:
            parts += _harvests(run)
        parts += [Part("  while the job runs", "", told)] if step in (SEED, HARVEST) and (told := _look(run)) else []
        if step == "image":
            parts += [Part("  image", format_duration(image.seconds), _image(image)) for image in run.images]
        parts += [Part(f"  {name}", "", text) for teller, name, text in run.told if teller == step]
    if "image" not in run.steps:  # an import in the background, or a hook that was killed
        parts += [Part("image", format_duration(image.seconds), _image(image)) for image in run.images]
    if HARVEST not in run.steps:
        parts += _harvests(run)
    parts += [Part(teller, "", f"{name}: {text}") for teller, name, text in run.told if teller not in run.steps]
    parts += [
        Part("remark", "", told if times == 1 else f"{told}, {times} times")
        for told, times in Counter(map(_remark, run.remarks)).items()
    ]
    of_steps = {failure.reason for failure in run.failures if failure.step in run.steps}  # a verdict repeats its cause
    parts += [
        Part("failed", "", failure.reason)
        for failure in run.failures
        if failure.step not in run.steps and failure.reason not in of_steps
    ]
    if run.done_by:
        outcome = "failed" if run.failures else "ok"
        return HookStory(run.done_by, run.node, run.first, run.seconds, outcome, tuple(parts))
    return HookStory(run.hook, run.node, run.first, run.seconds, run.outcome or _outcome(run), tuple(parts))


def _outcome(run: Run) -> str:
    """Return the outcome of a run whose end is not in the log: an import's is, but names no job."""
    if any(failure.degree == FAILED for failure in run.failures):
        return "failed" if run.hook == IMPORT else "unfinished"
    return "ok" if (run.hook == IMPORT and run.images) or run.set_of else "unfinished"


def _look(run: Run) -> str:
    """Return when a job is harvested next, "" if it is not while it runs."""
    if run.look:
        return f"it is harvested next at {timestamp(run.look)}, or when it makes the file .harvest in its cache"
    return f"it is harvested at its end alone: {run.at_end}" if run.at_end else ""


def _problems(run: Run, step: str) -> str:
    reasons = [failure.reason for failure in run.failures if failure.step == step]
    return "; ".join(dict.fromkeys(reasons))


def _profiles(run: Run, history: History) -> Iterable[Part]:
    for profile in run.warm:
        seeding = run.seedings.get(profile)
        yield Part(f"  {profile}", format_duration(seeding.seconds) if seeding else "", _warm(seeding))
    for profile, reason in run.cold.items():
        kind, _, details = reason.partition(": ")
        why = f"{_COLD[kind]}{f' ({details})' if details else ''}" if kind in _COLD else f"cold: {reason}"
        if kind == REFUSED_BUNDLES:
            why = _refused(run, profile) or why
        why += f"; on all nodes of the job{whose}" if (whose := _whose(run, profile)) else ""
        more = history.difference(profile, run.facts) if reason == NO_ENTRIES else ""
        yield Part(f"  {profile}", "", f"{why}; {more}" if more else why)


def _refused(run: Run, profile: str) -> str:
    """Return why no bundle of a profile is used, "" if the log does not say."""
    refused = [remark for remark in run.remarks if (remark.event, remark.about) == (events.BUNDLE_REFUSED, profile)]
    reasons = {*(remark.reason for remark in refused)}
    return f"cold: what is published is not used ({'; '.join(sorted(reasons))})" if reasons else ""


def _warm(seeding: Seeding | None) -> str:
    if seeding is None:
        return "warm"
    fetched = f", {format_size(seeding.fetched)} fetched" if seeding.fetched else ""
    bundles = counted(seeding.bundles, "bundle")
    scopes = ", ".join(seeding.scopes)
    return f"warm: {_counted(seeding.entries, 'entr')} of {bundles} ({scopes}), by {seeding.way}{fetched}"


def _harvests(run: Run) -> Iterable[Part]:
    for harvest in run.harvests:
        time = format_duration(harvest.seconds) if harvest.seconds else ""
        yield Part(f"  {harvest.profile}", time, _harvested(harvest, run.handed_in.get(harvest.profile, 0)))
    for profile, reasons in run.rejected.items():
        yield Part(f"  {profile}", "", f"entries rejected: {_listed(reasons)}")


def _harvested(harvest: Harvest, handed_in: int) -> str:
    changed = f", {harvest.changed} of them in place of seeded ones" if harvest.changed else ""
    seeded = f", although it was seeded with {harvest.seeded}" if harvest.seeded and not harvest.changed else ""
    if handed_in:
        told = f"{_counted(handed_in, 'new entr')} handed in, to be published with those of the job's other nodes"
    elif harvest.entries:
        when = " while the job ran" if harvest.running else ""
        told = f"{_counted(harvest.entries, 'new entr')} published{when}, {format_size(harvest.size)}{changed}{seeded}"
    else:
        told = "nothing new" if NO_ENTRY in harvest.ignored else _NOTHING_NEW.get(harvest.use, "nothing new")
    gone = f"; removed, and so retired: {_counted(harvest.retired, 'entr')}" if harvest.retired else ""
    gone += f" ({', '.join(harvest.retired_examples)})" if harvest.retired_examples else ""
    own = f"; set by the job itself: {', '.join(harvest.own)}" if harvest.own else ""
    examples = f" ({', '.join(harvest.examples)})" if harvest.examples else ""
    left_out = f"; left out: {_listed(harvest.ignored)}{examples}" if harvest.ignored else ""
    return f"{told}{gone}{own}{left_out}{f'; it ended early: {harvest.truncated}' if harvest.truncated else ''}"


def _counted(number: int, stem: str) -> str:
    """Return a number of entries; `stem` is the word without its end."""
    return f"{number} {stem}{'y' if number == 1 else 'ies'}"


def _listed(reasons: Mapping[str, int]) -> str:
    return ", ".join(f"{count} {reason}" for reason, count in reasons.items())


def _image(image: ImageUse) -> str:
    waited = f", after {format_duration(image.waited)} of waiting" if image.waited else ""
    return f"{image.reference} {_GOT[image.how]} ({format_size(image.size)}){waited}"


def _remark(remark: Remark) -> str:
    told = REMARKS[events.Event(remark.event)]
    about = f"{remark.about}: " if remark.about else ""
    return f"{about}{told}{f' ({remark.reason})' if remark.reason else ''}"


def _advice(runs: Sequence[Run]) -> Iterable[str]:
    by_reason: dict[str, list[str]] = {}
    unused = {harvest.profile for run in runs for harvest in run.harvests if harvest.use in contract.UNUSED}
    for run in runs:
        for profile, reason in run.cold.items():
            if profile not in unused and profile not in by_reason.setdefault(reason, []):
                by_reason[reason].append(profile)
    codes: dict[str, str] = {}  # by hint: a verdict has that of its cause, which comes first
    for failure in (failure for run in runs for failure in run.failures if failure.hint):
        codes.setdefault(failure.hint, failure.code)
    hints = [f"{code}: {hint}" for hint, code in codes.items()]
    lost = [one for run in runs for one in run.harvests if NO_ENTRY in one.ignored]
    lost = [one for one in lost if not (one.entries or one.known or one.seeded)]
    hints += [
        f"{harvest.profile}: none of these files is an entry's: `warmstart profile try DIRECTORY --profile "
        f"{harvest.profile}` shows what a directory's files would become"
        for harvest in lost
    ]
    told = [
        _ADVICE[reason].format(profiles=", ".join(profiles), job=runs[0].job)
        for reason, profiles in by_reason.items()
        if reason in _ADVICE
    ]
    if early := [run.died for run in runs if 0 < run.died < EARLY_S]:
        told.append(
            f"the job began warm and died after {format_duration(max(early))}: if that repeats, submit it with "
            "--warm-fresh, or with cache=NAME, another one for each configuration"
        )
    return dict.fromkeys([*hints, *told])


def _facts_of(profile: str) -> Sequence[str]:
    """Return the facts that make a profile's namespace; every one, for a profile of the site's own."""
    if profile in registry.names(()):
        shipped = registry.get(profile, ())
        return (*shipped.facts, "cache", *(("path",) if shipped.relocation == "constant-path" else ()))
    return ("image", "cpu", "machine", "gpu", "driver", "declared", "path", "cache")


def _last(texts: Iterable[str]) -> str:
    return next((value for value in reversed([*texts]) if value), "")
