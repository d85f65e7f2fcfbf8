"""The part of one node when its job's nodes agree on what they show the job. Runs as root; hot path of such jobs.

    head node    look at the listings ─▶ propose ─▶ fetch and mount ─▶ count the votes ─▶ choose
    other nodes              wait for the proposal ─▶ fetch and mount ─▶ vote ─▶ wait for the choice

A profile is warm on all nodes or cold on all (docs/reference/profiles.md, Jobs on several nodes): it is warm if every
node can show exactly what the head node proposed, in time. Whatever a node cannot find out counts as cold.

A proposal names generations of listings, which never change. A vote is a name, `vote.NODE.COLD.WHY`: COLD has a bit for
each proposed profile, by its place in the sorted proposal, that the node cannot show. So the head node reads the names
of one directory, however many nodes vote, and opens nothing.

Times: the head node chooses at most `seed.fetch_budget` and `VOTES_S` after its proposal, or chooses cold. Other nodes
wait `MARGIN_S` longer than that, from when they saw the proposal. Who has waited in vain says in the head node's place
that nothing is shown: what is said first holds for all, so a head node that was merely slow shows nothing either.
"""

from __future__ import annotations

from warmstart.caches.store.look import Generation
from warmstart.host.deadline import Deadline, after, looks
from warmstart.lean import TYPE_CHECKING, Mapping, NamedTuple, partial
from warmstart.slurm.nodes import expand, first
from warmstart.store.barrier import Barrier, HeadSilent
from warmstart.store.client import StoreClient

if TYPE_CHECKING:
    from warmstart.store.barrier import M

VOTES_S = 5.0  # for mounts, votes and what the store is late by
MARGIN_S = 5.0  # by which a node waits longer for the choice than the head node may take
PROPOSAL_S = 20.0  # that other nodes wait for the proposal, from where they need it, if there is time for the rest then
SAYING_S = 2.0  # of a node's time, for what it says in the head node's place
NO_VOTE = "no-vote"  # a node did not vote in time
_PROPOSAL, _CHOICE, _VOTE = "proposal", "choice", "vote."


class Proposed(NamedTuple):
    """What the head node is to show of one profile."""

    namespace: str
    facts: dict[str, str]  # from which the namespace was computed
    listings: dict[str, Generation]  # by scope, most trusted first


class Proposal(NamedTuple):
    """What the head node proposes, by profile."""

    profiles: dict[str, Proposed]


class Cold(NamedTuple):
    """Why a profile is cold on all nodes."""

    reason: str
    nodes: list[str]  # for which


class Choice(NamedTuple):
    """What all nodes show: the proposed profiles but those in `cold`."""

    cold: dict[str, Cold]


class Vote:
    """One node's part. Call `proposal`, then `settle`."""

    def __init__(self, store: StoreClient, where: Barrier, node: str, budget_s: float) -> None:
        """`budget_s` is the time for fetching bundles."""
        self._store = store
        self._barrier = where
        self._node = node
        self._is_head = first(where.nodelist) == node
        self._budget_s = budget_s
        self._proposed: list[str] = []  # profiles
        self._chosen_by = Deadline(0.0)  # when the choice must be there

    def proposal(self, own: Mapping[str, Proposed], deadline: Deadline) -> dict[str, Proposed]:
        """Return what all nodes are to show.

        On the head node that is `own`, unless an earlier prolog of this run has proposed something. Raises
        `StoreError`, on other nodes also `HeadSilent`.
        """
        if self._is_head:
            made = self._barrier.begin(self._store, _PROPOSAL, Proposal(dict(own)), deadline)
        else:
            made = self._heard(deadline)
        self._chosen_by = after(self._budget_s + VOTES_S + (0.0 if self._is_head else MARGIN_S))
        self._proposed = sorted(made.profiles)
        return made.profiles

    def _heard(self, deadline: Deadline) -> Proposal:
        """Wait for the proposal; in the end propose nothing."""
        spare = deadline.left() - self._budget_s - VOTES_S - SAYING_S
        until = after(0.0 if self._store.head_silent else max(0.0, min(PROPOSAL_S, spare)))  # waited for once already
        return self._awaited(_PROPOSAL, until, "proposed nothing", Proposal({}))

    def _awaited(self, name: str, until: Deadline, what: str, else_said: M) -> M:
        """Wait for what the head node says; in the end say something in its place, for all. Raises `HeadSilent`."""
        look = partial(self._barrier.hear, self._store, name, type(else_said))
        try:
            return self._barrier.await_head(self._store, look, until, what)
        except HeadSilent:
            said = self._barrier.say(self._store, name, else_said, after(SAYING_S), begins=name == _PROPOSAL)
            if said == else_said:
                raise
            return said

    def settle(self, cold: dict[str, str], deadline: Deadline) -> dict[str, Cold]:
        """Tell the others which profiles this node cannot show, and why; return which ones none of them shows.

        Raises `StoreError`, on other nodes also `HeadSilent`: then nothing of the proposal may be shown here.
        """
        until = deadline.within(self._chosen_by.left())
        if self._is_head:
            return self._barrier.say(self._store, _CHOICE, self._counted(cold, until), deadline).cold
        self._vote(cold, deadline)
        silent = Cold(HeadSilent.code, [first(self._barrier.nodelist)])
        mine = Choice(dict.fromkeys(self._proposed, silent))
        return self._awaited(_CHOICE, Deadline(until.at - SAYING_S), "chosen nothing", mine).cold

    def _vote(self, cold: dict[str, str], deadline: Deadline) -> None:
        bits = sum(1 << number for number, profile in enumerate(self._proposed) if profile in cold)
        why = min(cold.values(), default="").replace(" ", "+")
        self._barrier.mark(self._store, f"{_VOTE}{self._node}.{bits:x}.{why}", deadline)

    def _counted(self, own: dict[str, str], until: Deadline) -> Choice:
        """Return the choice of the head node by the votes of all nodes; a profile without a vote is cold."""
        missing = {*expand(self._barrier.nodelist)} - {self._node}
        against: dict[str, dict[str, str]] = {profile: {} for profile in self._proposed}  # node → why
        for profile in own.keys() & against.keys():
            against[profile][self._node] = own[profile]
        marks: list[str] = []
        with self._barrier.waiting():
            for _ in looks(until):
                if until.expired():  # the others give up soon
                    break
                marks = self._barrier.marks(self._store, _VOTE, until)
                missing -= {mark.rsplit(".", 2)[0] for mark in marks}
                if not missing:
                    break
        for mark in marks:
            node, bits, why = mark.rsplit(".", 2)
            for number, profile in enumerate(self._proposed):
                if int(bits, 16) >> number & 1:
                    against[profile][node] = why.replace("+", " ")
        silent = dict.fromkeys(missing, NO_VOTE)
        return Choice({profile: _cold(found or silent) for profile, found in against.items() if found or silent})


def _cold(reasons: Mapping[str, str]) -> Cold:
    """Return one reason of those that nodes gave, and the nodes that gave it."""
    reason = min(reasons.values())
    return Cold(reason, sorted(node for node, why in reasons.items() if why == reason))
