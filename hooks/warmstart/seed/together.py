"""The part of one node when its job's nodes agree on what they show the job. Runs as root; hot path of such jobs.

    head node    list the bundles ─▶ propose ─▶ fetch and mount ─▶ collect the votes ─▶ choose
    other nodes            wait for the proposal ─▶ fetch and mount ─▶ vote ─▶ wait for the choice

A profile is warm on all nodes or cold on all (docs/reference/profiles.md, Jobs on several nodes): it is warm if every
node can show exactly what the head node proposed, in time. Whatever a node cannot find out counts as cold.

Times: the head node chooses at most `seed.fetch_budget` and `VOTES_S` after its proposal, or chooses cold. Other nodes
wait `MARGIN_S` longer than that, from when they saw the proposal. Who has waited in vain says in the head node's place
that nothing is shown: what is said first holds for all, so a head node that was merely slow shows nothing either.
"""

from __future__ import annotations

import time

from warmstart.host.deadline import Deadline, after, looks
from warmstart.lean import Mapping, NamedTuple, partial
from warmstart.run.state import Caches, Run
from warmstart.slurm.nodes import expand, first
from warmstart.store.bundles import Offer
from warmstart.store.client import StoreClient
from warmstart.store.meeting import HeadSilent, Meeting

VOTES_S = 5.0  # for mounts, votes and what the store is late by
MARGIN_S = 5.0  # by which a node waits longer for the choice than the head node may take
PROPOSAL_S = 20.0  # that other nodes wait for the proposal, from where they need it, if there is time for the rest then
SAYING_S = 2.0  # of a node's time, for what it says in the head node's place
NO_VOTE = "no-vote"  # a node did not vote in time
_PROPOSAL, _CHOICE, _VOTE = "proposal", "choice", "vote."  # notices


class ProposedProfile(NamedTuple):
    """What the head node is to show of one profile."""

    namespace: str
    facts: dict[str, str]  # from which the namespace was computed
    offers: list[Offer]  # in the order of an overlay's layers


class Proposal(NamedTuple):
    """What the head node proposes."""

    profiles: dict[str, ProposedProfile]


class Vote(NamedTuple):
    """What one node cannot show."""

    cold: dict[str, str]  # profile → why; a profile that is not here can be shown


class Cold(NamedTuple):
    """Why a profile is cold on all nodes."""

    reason: str
    nodes: list[str]  # for which


class Choice(NamedTuple):
    """What all nodes show: the proposed profiles but those in `cold`."""

    cold: dict[str, Cold]


class Settled(NamedTuple):
    """How the nodes agreed."""

    cold: dict[str, Cold]  # by profile
    waited_s: float


class Together:
    """One node's part. Call `proposal`, then `settle`."""

    def __init__(self, store: StoreClient, run: Run, caches: Caches, meeting: Meeting, budget_s: float) -> None:
        """`budget_s` is the time for fetching bundles."""
        self._store = store
        self._node = run.node
        self._is_head = run.leads(caches)
        self._scopes = caches.read_scopes
        self._nodelist = meeting.nodelist
        self._board = meeting.joined(store, run)
        self._budget_s = budget_s
        self._proposed: list[str] = []  # profiles
        self._chosen_by = Deadline(0.0)  # when the choice must be there

    def proposal(self, own: Mapping[str, ProposedProfile], deadline: Deadline) -> dict[str, ProposedProfile]:
        """Return what all nodes are to show.

        On the head node that is `own`, unless an earlier prolog of this run has proposed something. Raises
        `StoreError`, on other nodes also `HeadSilent`.
        """
        made = self._board.begin(_PROPOSAL, Proposal(dict(own)), deadline) if self._is_head else self._heard(deadline)
        for profile in made.profiles.values():
            for offer in profile.offers:
                self._store.check_offer(offer, self._scopes)
        self._chosen_by = after(self._budget_s + VOTES_S + (0.0 if self._is_head else MARGIN_S))
        self._proposed = [*made.profiles]
        return made.profiles

    def _heard(self, deadline: Deadline) -> Proposal:
        """Wait for the proposal; in the end propose nothing."""
        spare = deadline.left() - self._budget_s - VOTES_S - SAYING_S
        until = after(0.0 if self._store.head_silent else max(0.0, min(PROPOSAL_S, spare)))  # waited for once already
        try:
            return self._board.await_head(partial(self._board.hear, _PROPOSAL, Proposal), until, "proposed nothing")
        except HeadSilent:
            made = self._board.begin(_PROPOSAL, Proposal({}), after(SAYING_S))
            if not made.profiles:
                raise
            return made

    def settle(self, cold: dict[str, str], deadline: Deadline) -> Settled:
        """Tell the others which profiles this node cannot show, and why; return what all of them show.

        Raises `StoreError`, on other nodes also `HeadSilent`: then nothing of the proposal may be shown here.
        """
        began = time.monotonic()
        until = deadline.within(self._chosen_by.left())
        if self._is_head:
            choice = self._board.say(_CHOICE, self._counted(cold, until), deadline)
        else:
            self._board.say(_VOTE + self._node, Vote(cold), deadline)
            choice = self._chosen(Deadline(until.at - SAYING_S))
        return Settled(choice.cold, round(time.monotonic() - began, 3))

    def _chosen(self, until: Deadline) -> Choice:
        """Wait for the choice; in the end choose cold."""
        try:
            return self._board.await_head(partial(self._board.hear, _CHOICE, Choice), until, "chosen nothing")
        except HeadSilent as error:
            silent = Cold(error.code, [first(self._nodelist)])
            mine = Choice(dict.fromkeys(self._proposed, silent))
            if (choice := self._board.say(_CHOICE, mine, after(SAYING_S))) == mine:
                raise
            return choice

    def _counted(self, own: dict[str, str], until: Deadline) -> Choice:
        """Return the choice of the head node by the votes of all nodes; a profile without a vote is cold."""
        votes = {self._node: own}
        missing = {*expand(self._nodelist)} - {self._node}
        with self._board.waiting():
            for _ in looks(until):
                if until.expired():  # the others give up soon
                    break
                known = [_VOTE + node for node in votes]
                given = self._board.hear_all(_VOTE, Vote, known, until)
                votes.update({name.removeprefix(_VOTE): vote.cold for name, vote in given.items()})
                missing -= votes.keys()
                if not missing:
                    break
        cold: dict[str, Cold] = {}
        for profile in self._proposed:
            against = {node: why for node, word in votes.items() if (why := word.get(profile))}
            against.update(dict.fromkeys(missing, NO_VOTE))
            if against:
                cold[profile] = _cold(against)
        return Choice(cold)


def _cold(against: Mapping[str, str]) -> Cold:
    """Return one reason of those that nodes gave, with all that follows its colon, and the nodes that gave it."""
    reason = min(why.partition(":")[0] for why in against.values())
    given = {node: why for node, why in against.items() if why.partition(":")[0] == reason}
    details = {detail for why in given.values() for detail in why.partition(": ")[2].split(", ") if detail}
    return Cold(f"{reason}: {', '.join(sorted(details))}" if details else reason, sorted(given))
