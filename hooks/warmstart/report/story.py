"""The story of one job: what it asked, what it got, how long each part took, what was cold and why, what to do."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from warmstart.audit import values
from warmstart.audit.line import Line
from warmstart.policy.units import format_duration, format_size
from warmstart.profiles import contract
from warmstart.report.lines import PROLOG, Hook, Item, why_cold

MOST_NAMED = 8  # nodes, in a line
EARLY_S = 300.0  # an end that may be the doing of what the job was given
SEED, HARVEST, IMAGE = "seed", "harvest", "image"  # steps
NO_ENTRY = "no file of an entry"
OBSERVED = "it is only observed (mode: observe)"

COLD = {
    "nothing-published": "nothing is published for its facts in the scopes that this job reads",
    "asked-fresh": "the job asked to start fresh",
    "bundles-refused": "what is published is not used",
    "bundles-left-out": "what is published did not come to the node in time, or is too much to fetch",
    "nothing-proposed": "the job's first node has nothing for it",
    "nodes-differ": "the job's nodes differ in what its entries depend on",
    "no-vote": "a node of the job was not ready in time",
    "head-silent": "the job's first node was not heard of in time",
}
_GOT = {
    "reused": "was in the store",
    "waited": "was imported meanwhile",
    "imported": "was imported",
    "stale": "was in the store: it is what its tag meant last, and may be out of date",
}
_NEW = {
    "entries": "published",
    "handed_in": "handed in, to be published with those of the job's other nodes",
}
_NOTHING_NEW = {
    contract.HIT: ": the entries that it was given were used",
    contract.UNKNOWN: "; whether it used what it was given cannot be seen",
    contract.UNTOUCHED: ": not used; the script may set its variables itself",
    contract.AROUND: ": the job went around it",
}


class Part(NamedTuple):
    """One part of a hook's work: how long it took, "" if nobody knows, and what came of it."""

    part: str
    time: str
    what: str


def first_node(hooks: Sequence[Hook]) -> str:
    """Return the node whose prolog said that the job began with it, else one of the others."""
    prologs = [hook for hook in hooks if hook.name == PROLOG and not hook.done_by]
    return min(prologs or hooks, key=lambda hook: (not hook.head, len(hook.node), hook.node)).node


def about(hooks: Sequence[Hook]) -> Iterator[str]:
    """Yield what there is to say of a job as a whole: who asked for what, by which rules, and why it got nothing."""
    node, known = first_node(hooks), Line()
    for hook in sorted(hooks, key=lambda hook: (hook.node == node, hook.name == PROLOG)):
        known |= hook.line  # what the first node's prolog says counts most
    labels = [f"{key} {text}" for key in ("cluster", "partition", "account") if (text := values.text(known, key))]
    yield ", ".join([f"job {hooks[0].job} of {values.text(known, 'user') or '?'}", *labels])
    for key in ("asked", "rules", "granted", "facts"):
        if words := [*_words(known.get(key))]:
            yield f"{key}: {', '.join(words)}"
    if excluded := values.text(known, "excluded") or (OBSERVED if known.get("observed") is True else ""):
        yield f"warmstart does nothing for it: {excluded}"
    if refused := [failure for hook in hooks for failure in hook.failures if failure.get("degree") == "refused"]:
        yield f"refused: {values.text(refused[0], 'reason')}"
    yield from values.texts(known, "notices")


def advice(hooks: Sequence[Hook]) -> list[str]:
    """Return what to do."""
    failures = [failure for hook in hooks for failure in hook.failures if values.text(failure, "hint")]
    found = [f"{values.text(failure, 'code')}: {values.text(failure, 'hint')}" for failure in failures]
    if early := [died for hook in hooks if 0 < (died := values.seconds(hook.line, "died_ms")) < EARLY_S]:
        found.append(
            f"the job began warm and died after {format_duration(max(early))}: if that repeats, submit it with "
            "--warm-fresh, or with cache=NAME, another one for each configuration"
        )
    return [*dict.fromkeys(found)]


def named(nodes: Sequence[str]) -> str:
    """Return the first nodes, and how many more there are."""
    more = f" and {len(nodes) - MOST_NAMED} more" if len(nodes) > MOST_NAMED else ""
    return f"{', '.join(nodes[:MOST_NAMED])}{more}"


def _words(value: object) -> Iterable[str]:
    """Yield the items of a list, or those of an object that are something: `images a, b`, `fresh`, `ports 2`."""
    if isinstance(value, dict):
        yield from (name if item is True else f"{name} {_text(item)}" for name, item in value.items() if item)
    elif isinstance(value, list):
        yield from map(str, value)


def _text(value: object) -> str:
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)


def parts(hook: Hook) -> list[Part]:
    """Return what a hook did, a part for each step, and for each of its images and caches."""
    steps, told = values.mapping(hook.line, "steps"), values.mapping(hook.line, "told")
    reasons = defaultdict[str, list[str]](list)  # by step
    for failure in hook.failures:
        reasons[values.text(failure, "step")].append(values.text(failure, "reason"))
    own = {IMAGE: [*map(_image, hook.images)], SEED: [*_starts(hook)], HARVEST: [*_harvests(hook)]}
    found: list[Part] = []
    for step in dict.fromkeys((*steps, *(step for step, items in own.items() if items), *told)):
        time = format_duration(values.seconds(steps, step)) if step in steps else ""
        found.append(Part(step, time, "; ".join(dict.fromkeys(reasons.pop(step, ())))))
        found += own.get(step, [])
        found += [Part(f"  {name}", "", _text(text)) for name, text in values.mapping(told, step).items()]
    for remark in values.mappings(hook.line, "remarks"):
        of = values.text(remark, "about")
        found.append(Part("remark", "", f"{of}: " * bool(of) + values.text(remark, "text")))
    found += [Part("failed", "", reason) for of_step in reasons.values() for reason in of_step]
    if bug := values.text(hook.line, "traceback").strip().rpartition("\n")[2]:
        found.append(Part("bug", "", bug))
    return found


def _image(image: Item) -> Part:
    how, waited = values.text(image, "how"), values.seconds(image, "waited_ms")
    what = f"{values.text(image, 'image')} {_GOT.get(how, how)} ({format_size(values.count(image, 'bytes'))})"
    after = f", after {format_duration(waited)} of waiting" if waited else ""
    return Part("  image", _time(image), what + after)


def _starts(hook: Hook) -> Iterable[Part]:
    if of := values.text(hook.line, "of"):
        yield Part("  image", "", f"caches of {of}")
    for profile, start in hook.starts:
        yield Part(f"  {profile}", _time(start), _cold(start) if why_cold(start)[0] else _warm(start))


def _time(item: Item) -> str:
    return format_duration(took) if (took := values.seconds(item, "ms")) else ""


def _warm(start: Item) -> str:
    entries, bundles, size = (values.count(start, key) for key in ("entries", "bundles", "fetched_bytes"))
    fetched = f", {format_size(size)} fetched" if size else ""
    scopes = ", ".join(values.texts(start, "scopes"))
    of = f"{_entries(entries)} of {bundles} bundle{'s' * (bundles != 1)}"
    return f"warm: {of} ({scopes}), by {values.text(start, 'way')}{fetched}"


def _cold(start: Item) -> str:
    reason, details = why_cold(start)
    nodes = values.texts(start, "nodes")
    return (
        f"cold: {COLD.get(reason, reason)}"
        + (f" ({details})" if details else "")
        + (f"; on all nodes of the job, because of {named(nodes)}" if nodes else "")
    )


def _harvests(hook: Hook) -> Iterable[Part]:
    for profile, item in hook.harvests:
        image = values.text(item, "image")
        yield Part(f"  {profile}{f' of {image}' if image else ''}", _time(item), "; ".join(_harvested(item)))


def _harvested(item: Item) -> Iterable[str]:
    when = " while the job ran" if item.get("running") is True else ""
    made = {words: number for key, words in _NEW.items() if (number := values.count(item, key))}
    yield from (f"{_entries(number, 'new ')} {words}{when}" for words, number in made.items())
    if changed := values.count(item, "changed"):
        yield f"{changed} of them in place of seeded ones"
    ignored = values.counts(item, "ignored")
    if left_out := values.text(item, "left_out") or values.text(item, "truncated"):
        yield f"not harvested, or not all: {left_out}"
    elif not made:
        yield "nothing new" + ("" if NO_ENTRY in ignored else _NOTHING_NEW.get(values.text(item, "use"), ""))
    if retired := values.count(item, "retired"):
        yield f"removed, and so retired: {_entries(retired)}{_such_as(item, 'retired')}"
    if own := values.texts(item, "own"):
        yield f"set by the job itself: {', '.join(own)}"
    for what, key in (("left out", "ignored"), ("entries rejected", "rejected")):
        if reasons := ", ".join(f"{number} {reason}" for reason, number in values.counts(item, key).items()):
            yield f"{what}: {reasons}{_such_as(item, key)}"


def _such_as(item: Item, key: str) -> str:
    """Return the names of examples, of which some are a pair of name and reason."""
    examples = item.get(f"{key}_examples")
    found = examples if isinstance(examples, list) else []
    names = [str(one[0]) if isinstance(one, list) and one else str(one) for one in found]
    return f" ({', '.join(names)})" if names else ""


def _entries(number: int, kind: str = "") -> str:
    return f"{number} {kind}{'entry' if number == 1 else 'entries'}"
