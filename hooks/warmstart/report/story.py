"""The story of one job: what it asked, what it got, how long each part took, what was cold and why, what to do."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from warmstart.audit import values
from warmstart.policy.units import format_duration, format_size
from warmstart.profiles import contract
from warmstart.report.lines import PROLOG, REFUSED, Hook, ImageUse, Item, why_cold

MOST_NAMED = 8  # nodes, in a line
EARLY_S = 300.0  # an end that may be the doing of what the job was given
SEED, HARVEST, IMAGE = "seed", "harvest", "image"
NO_ENTRY = "no file of an entry"
OBSERVED = "it is only observed (mode: observe)"

_COLD = {
    "nothing-published": "cold: nothing is published for its facts in the scopes that this job reads",
    "asked-fresh": "cold: the job asked to start fresh",
    "bundles-refused": "cold: what is published is not used",
    "bundles-left-out": "cold: what is published did not come to the node in time, or is too much to fetch",
    "nothing-proposed": "cold: the job's first node has nothing for it",
    "nodes-differ": "cold: the job's nodes differ in what its entries depend on",
    "no-vote": "cold: a node of the job was not ready in time",
    "head-silent": "cold: the job's first node was not heard of in time",
}
_GOT = {
    "reused": "was in the store",
    "waited": "was imported meanwhile",
    "imported": "was imported",
    "stale": "was in the store: it is what its tag meant last, and may be out of date",
}
NOTHING_NEW = "nothing new"
_NOTHING_NEW = {
    contract.HIT: "nothing new: the entries that it was given were used",
    contract.UNKNOWN: "nothing new; whether it used what it was given cannot be seen",
    contract.UNTOUCHED: "nothing new: not used; the script may set its variables itself",
    contract.AROUND: "nothing new: the job went around it",
}


class Part(NamedTuple):
    """One part of a hook's work: how long it took, "" if nobody knows, and what came of it."""

    part: str
    time: str
    what: str


class HookStory(NamedTuple):
    """One run of one hook."""

    hook: str
    node: str
    started: str  # `ts`
    seconds: float  # 0.0 of one that has not finished
    outcome: str  # ok | ended | failed | refused | drained | crashed | killed | has not finished
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
    facts: tuple[str, ...]  # what its caches depend on, where its first hook knew
    excluded: str
    refused: str  # why the job failed
    hooks: tuple[HookStory, ...]
    advice: tuple[str, ...]
    notices: tuple[str, ...] = ()  # what its output shows, where that is known


def tell(hooks: Sequence[Hook]) -> Story:
    """Return the story of a job by its hooks, of which there is one at least."""
    ordered = sorted(hooks, key=lambda hook: (hook.began, hook.node))
    prologs = [hook for hook in ordered if hook.name == PROLOG and not hook.done_by]
    by_node = {hook.node: hook for hook in prologs}
    nodes = sorted(by_node, key=lambda node: (not by_node[node].head, len(node), node))
    plan = next((hook.line for hook in prologs if "rules" in hook.line or "asked" in hook.line), ordered[0].line)
    granted = values.mapping(plan, "granted")
    refused = next((failure for hook in ordered for failure in hook.failures if failure.degree == REFUSED), None)
    return Story(
        job=ordered[0].job,
        user=_last(ordered, "user"),
        cluster=_last(ordered, "cluster"),
        partition=_last(ordered, "partition"),
        account=_last(ordered, "account"),
        nodes=tuple(nodes),
        asked=tuple(_asked(values.mapping(plan, "asked"))),
        rules=values.texts(plan, "rules"),
        added=(*values.texts(granted, "images"), *values.texts(granted, "profiles")),
        facts=tuple(_asked(values.mapping(plan, "facts"))),
        excluded=values.text(plan, "excluded") or (OBSERVED if plan.get("observed") is True else ""),
        refused=refused.reason if refused else "",
        hooks=tuple(map(_hook, ordered)),
        advice=tuple(dict.fromkeys(_advice(ordered))),
    )


def _last(hooks: Sequence[Hook], name: str) -> str:
    return next((text for hook in reversed(hooks) if (text := values.text(hook.line, name))), "")


def _asked(asked: Mapping[str, object]) -> Iterable[str]:
    for name, value in asked.items():
        if isinstance(value, list):
            yield f"{name} {', '.join(map(str, value))}"
        else:
            yield name if value is True else f"{name} {value}"


def named(nodes: Sequence[str]) -> str:
    """Return the first nodes, and how many more there are."""
    more = f" and {len(nodes) - MOST_NAMED} more" if len(nodes) > MOST_NAMED else ""
    return f"{', '.join(nodes[:MOST_NAMED])}{more}"


def _hook(hook: Hook) -> HookStory:
    told = values.mapping(hook.line, "told")
    of_step = {
        IMAGE: [Part("  image", format_duration(image.seconds), _image(image)) for image in hook.images],
        SEED: [*_starts(hook)],
        HARVEST: [*_harvests(hook)],
    }
    parts: list[Part] = []
    for step in dict.fromkeys((*hook.steps, *(step for step, own in of_step.items() if own), *told)):
        time = format_duration(hook.steps[step]) if step in hook.steps else ""
        parts.append(Part(step, time, "; ".join(dict.fromkeys(f.reason for f in hook.failures if f.step == step))))
        parts += of_step.get(step, [])
        parts += [Part(f"  {name}", "", _text(text)) for name, text in values.mapping(told, step).items()]
    for remark in values.mappings(hook.line, "remarks"):
        about, text = values.text(remark, "about"), values.text(remark, "text")
        parts.append(Part("remark", "", text if not about or text.startswith(about) else f"{about}: {text}"))
    known = {failure.reason for failure in hook.failures if failure.step in hook.steps}  # a verdict repeats its cause
    parts += [Part("failed", "", f.reason) for f in hook.failures if f.step not in hook.steps and f.reason not in known]
    if bug := values.text(hook.line, "traceback").strip().rpartition("\n")[2]:
        parts.append(Part("bug", "", bug))
    outcome = hook.outcome or ("failed" if hook.failures else "ok")  # of what was done for another job
    return HookStory(hook.done_by or hook.name, hook.node, hook.began, hook.seconds, outcome, tuple(parts))


def _text(value: object) -> str:
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)


def _image(image: ImageUse) -> str:
    waited = f", after {format_duration(image.waited)} of waiting" if image.waited else ""
    return f"{image.reference} {_GOT.get(image.how, image.how)} ({format_size(image.size)}){waited}"


def _starts(hook: Hook) -> Iterable[Part]:
    if of := values.text(hook.line, "of"):
        yield Part("  image", "", f"caches of {of}")
    for profile, start in hook.starts:
        cold = why_cold(start)
        yield Part(f"  {profile}", _time(start), _cold(cold, start) if cold else _warm(start))


def _time(item: Item) -> str:
    return format_duration(took) if (took := values.seconds(item, "ms")) else ""


def _warm(start: Item) -> str:
    entries = _entries(values.count(start, "entries"))
    bundles = values.count(start, "bundles")
    size = values.count(start, "fetched_bytes")
    fetched = f", {format_size(size)} fetched" if size else ""
    scopes = ", ".join(values.texts(start, "scopes"))
    return (
        f"warm: {entries} of {bundles} bundle{'s' * (bundles != 1)} ({scopes}), by {values.text(start, 'way')}{fetched}"
    )


def _cold(cold: str, start: Item) -> str:
    kind, _, details = cold.partition(": ")
    why = f"{_COLD[kind]}{f' ({details})' if details else ''}" if kind in _COLD else f"cold: {cold}"
    if nodes := values.texts(start, "nodes"):
        why += f"; on all nodes of the job, because of {named(nodes)}"
    return why


def _harvests(hook: Hook) -> Iterable[Part]:
    for profile, item in hook.harvests:
        image = values.text(item, "image")
        yield Part(f"  {profile}{f' of {image}' if image else ''}", _time(item), "; ".join(_harvested(item)))


def _harvested(item: Item) -> Iterable[str]:
    left_out = values.text(item, "left_out") or values.text(item, "truncated")
    if new := _published(item):
        yield new
    elif not left_out:
        known = _NOTHING_NEW.get(values.text(item, "use"), NOTHING_NEW)
        yield NOTHING_NEW if NO_ENTRY in values.counts(item, "ignored") else known
    if left_out:
        yield f"not harvested, or not all: {left_out}"
    if retired := values.count(item, "retired"):
        examples = ", ".join(values.texts(item, "retired_examples"))
        yield f"removed, and so retired: {_entries(retired)}{f' ({examples})' if examples else ''}"
    if own := values.texts(item, "own"):
        yield f"set by the job itself: {', '.join(own)}"
    for what, key in (("left out", "ignored"), ("entries rejected", "rejected")):
        if reasons := values.counts(item, key):
            yield f"{what}: {_listed(reasons)}{_such_as(item.get(f'{key}_examples'))}"


def _listed(reasons: Mapping[str, int]) -> str:
    return ", ".join(f"{count} {reason}" for reason, count in reasons.items())


def _such_as(pairs: object) -> str:
    """Return the names of examples, each of which is a pair of name and reason."""
    names = [str(pair[0]) for pair in pairs if isinstance(pair, list) and pair] if isinstance(pairs, list) else []
    return f" ({', '.join(names)})" if names else ""


def _published(item: Item) -> str:
    """Return what became of the entries that the job made, "" if it made none."""
    if handed_in := values.count(item, "handed_in"):
        return f"{_entries(handed_in, 'new ')} handed in, to be published with those of the job's other nodes"
    if spooled := values.count(item, "spooled"):
        return f"{_entries(spooled, 'new ')} on the node, until the store takes them"
    number, seeded, changed = (values.count(item, name) for name in ("entries", "seeded", "changed"))
    when = " while the job ran" if item.get("running") is True else ""
    told = f"{_entries(number, 'new ')} published{when}, {format_size(values.count(item, 'size'))}"
    if changed:
        told += f", {changed} of them in place of seeded ones"
    elif seeded:
        told += f", although it was seeded with {seeded}"
    return told if number else ""


def _entries(number: int, kind: str = "") -> str:
    return f"{number} {kind}{'entry' if number == 1 else 'entries'}"


def _advice(hooks: Sequence[Hook]) -> Iterable[str]:
    codes: dict[str, str] = {}  # by hint: a verdict has that of its cause, which comes first
    for failure in (failure for hook in hooks for failure in hook.failures if failure.hint):
        codes.setdefault(failure.hint, failure.code)
    yield from (f"{code}: {hint}" for hint, code in codes.items())
    if early := [died for hook in hooks if 0 < (died := values.seconds(hook.line, "died_ms")) < EARLY_S]:
        yield (
            f"the job began warm and died after {format_duration(max(early))}: if that repeats, submit it with "
            "--warm-fresh, or with cache=NAME, another one for each configuration"
        )
