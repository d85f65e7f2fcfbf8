"""What the ends of a user's jobs say of one namespace of their scope (docs/adr/0060). Runs as the store's owner.

    clear ── a job that began warm dies early ──▶ open: whoever starts there begins cold
    open  ── one that began cold for it dies early, having built something ──▶ clear; what was seeded is acquitted
          ── one that began cold for it has lived ──▶ clear; what it built takes the place of what was there
          ── … and takes it a second time ──▶ clear; names are set aside, so readers have neither version
          ── nobody says anything for a day ──▶ clear

Nobody claims or locks anything to start; of two that settle the same suspicion, the first one counts. All of it stands
in the first line of the index, which prologs read anyway. An index that is made of the manifests anew has lost it: then
one more job dies. The functions before `suspect` are pure.
"""

from __future__ import annotations

import os
import time

from warmstart.lean import Callable, Iterable, Mapping, NamedTuple, partial
from warmstart.store import index, layout
from warmstart.store.blocklist import Blocks
from warmstart.store.index import Evidence, Index, Suspicion
from warmstart.store.layout import Namespace, store_errors
from warmstart.store.manifest import Draft, Manifest

MOST_REPLACED = 64  # bundles
MOST_ASIDE = 1000  # names: every prolog of the user reads them
NOTHING = Evidence()


class Settled(NamedTuple):
    """What becomes of the entries of a job that began cold on suspicion, and has lived."""

    evidence: Evidence
    aside: list[str]  # names of which readers get neither version; without any, its entries take the place


def suspected(new: Suspicion, evidence: Evidence, now: float) -> Evidence:
    """Return the evidence after a job that began warm has died early, or a sample has built something else.

    It says nothing where a suspicion is open, where what it was seeded with is acquitted, or where it began before the
    last suspicion was settled.
    """
    if evidence.opened(now) or evidence.acquitted == new.seeded or new.began < evidence.settled:
        return evidence
    return evidence._replace(suspicion=new)


def acquitted(suspicion: str, evidence: Evidence, now: float) -> Evidence:
    """Return the evidence after a job that began cold for a suspicion has died early, too."""
    found = evidence.opened(now)
    if found is None or found.id != suspicion or found.survived:
        return evidence
    return evidence._replace(suspicion=None, acquitted=found.seeded, settled=now)


def survived(suspicion: str, evidence: Evidence, now: float) -> Evidence:
    """Return the evidence while a job that began cold for a suspicion has lived for long and still runs."""
    found = evidence.opened(now)
    if found is None or found.id != suspicion:
        return evidence
    return evidence._replace(suspicion=found._replace(survived=True, at=now))


def settled(
    evidence: Evidence | None,
    now: float,
    *,
    suspicion: str,
    names: Iterable[str],
    marks: Mapping[str, str],
    bundle: str,
) -> Settled | None:
    """Return what becomes of a survivor's entries, to be published as `bundle`; None if its suspicion is not open.

    `marks` are the youngest ones of the scope: a name that a survivor has replaced has the mark of its bundle.
    """
    found = evidence and evidence.opened(now)
    if evidence is None or found is None or found.id != suspicion:
        return None
    replaced = {name: until for name, until in evidence.replaced.items() if now < until}
    known = {name: until for name, until in evidence.aside.items() if now < until}
    again = sorted(name for name in names if marks.get(name) in replaced or name in known)[:MOST_ASIDE]
    until = now + found.window
    if again:
        known = dict([*known.items(), *((name, until) for name in again)][-MOST_ASIDE:])
    else:
        replaced = dict([*replaced.items(), (bundle, until)][-MOST_REPLACED:])
    after = Evidence(suspicion=None, acquitted="", settled=now, replaced=replaced, aside=known)
    return Settled(after, again)


class Settlement:
    """The publication of what a survivor built, by which its suspicion is settled."""

    def __init__(self, draft: Draft, blocked: Blocks) -> None:
        """`draft` names the suspicion."""
        self._draft = draft
        self._blocked = blocked
        self.settled: Settled | None = None

    def with_id(self, new: Manifest, before: Index, dir_fd: int) -> Manifest | None:
        """Return the bundle as `index.with_new_id` does; where names are set aside, one that has only their marks."""
        named = index.with_youngest_id(new, before)
        marks = index.marks(before.usable(self._blocked))
        self.settled = settled(
            before.evidence,
            time.time(),
            suspicion=self._draft.suspicion,
            names=new.entries,
            marks=marks,
            bundle=named.bundle,
        )
        if self.settled is None:  # somebody else has settled it
            return index.with_new_id(self._draft._replace(fresh=False), self._blocked, new, before, dir_fd)
        if self.settled.aside:
            return named._replace(entries={}, supersedes=dict.fromkeys(self.settled.aside, named.bundle))
        return named._replace(supersedes=dict.fromkeys(new.entries, named.bundle))


def suspect(where: Namespace, writer: str, new: Suspicion) -> bool:
    """Open a suspicion; return whether it was opened (`suspected`)."""
    return _change(where, writer, partial(suspected, new))


def acquit(where: Namespace, writer: str, suspicion: str) -> bool:
    """Settle a suspicion: the cache was not the cause. Return whether this has settled it."""
    return _change(where, writer, partial(acquitted, suspicion))


def outlive(where: Namespace, writer: str, suspicion: str) -> bool:
    """Say that a job that began cold for a suspicion still runs; return whether the suspicion is open."""
    return _change(where, writer, partial(survived, suspicion))


def _change(where: Namespace, writer: str, change: Callable[[Evidence, float], Evidence]) -> bool:
    from warmstart.store.locks import publish_lock

    with store_errors("note how a job ended", where.path):
        dir_fd = layout.make_namespace(where)
        try:
            with publish_lock(where.path):
                there = index.current(dir_fd).evidence or NOTHING
                evidence = change(there, time.time())
                if evidence != there:
                    index.update(dir_fd, writer, evidence)
        finally:
            os.close(dir_fd)
    return evidence != there
