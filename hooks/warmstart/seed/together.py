"""The part of one node when its job's nodes agree on what they show the job. Runs as root; hot path of such jobs.

    head node    list the bundles ─▶ propose ─▶ fetch and mount ─▶ collect the votes ─▶ choose
    other nodes            wait for the proposal ─▶ fetch and mount ─▶ vote ─▶ wait for the choice

A profile is warm on all nodes or cold on all (docs/reference/seeding.md, Jobs on several nodes): it is warm if every
node can show exactly what the head node proposed, in time. Whatever a node cannot find out counts as cold.

Times: the head node chooses at most `seed.fetch_budget` and `VOTES_S` after its proposal, or chooses cold. Other nodes
wait `MARGIN_S` longer than that, from when they saw the proposal.
"""

from __future__ import annotations

import time

from warmstart.host.deadline import Deadline, after
from warmstart.lean import Mapping, NamedTuple, partial
from warmstart.record import Record
from warmstart.slurm.nodes import expand
from warmstart.store.agreement import Choice, Cold, Proposal, ProposedProfile, Vote
from warmstart.store.client import StoreClient
from warmstart.store.meeting import Meeting, looks

VOTES_S = 5.0  # for mounts, votes and what the store is late by
MARGIN_S = 5.0  # by which a node waits longer for the choice than the head node may take
PROPOSAL_S = 20.0  # that other nodes wait for the proposal, from where they need it
NO_VOTE = "no-vote"  # a node did not vote in time


class Settled(NamedTuple):
    """How the nodes agreed."""

    cold: dict[str, Cold]  # by profile
    waited_s: float


class Together:
    """One node's part. Call `proposal`, then `settle`."""

    def __init__(self, store: StoreClient, record: Record, meeting: Meeting, budget_s: float) -> None:
        """`budget_s` is the time for fetching bundles."""
        self._store = store
        self._record = record
        self._meeting = meeting
        self._place = meeting.place(store, record)
        self._budget_s = budget_s
        self._proposed: list[str] = []  # profiles
        self._chosen_by = Deadline(0.0)  # when the choice must be there

    def proposal(self, own: Mapping[str, ProposedProfile], deadline: Deadline) -> dict[str, ProposedProfile]:
        """Return what all nodes are to show.

        On the head node that is `own`, unless an earlier prolog of this run has proposed something. Raises
        `StoreError`, on other nodes also `HeadSilent`.
        """
        scopes = self._record.read_scopes
        if self._record.head:
            made = self._store.propose(self._place, Proposal(self._place.whose, dict(own)), scopes, deadline)
        else:
            look = partial(self._store.proposal, self._place, scopes)
            until = deadline.within(0.0 if self._store.head_silent else PROPOSAL_S)  # waited for once already
            made = self._meeting.awaited(self._store, look, until, "proposed nothing")
        self._chosen_by = after(self._budget_s + VOTES_S + (0.0 if self._record.head else MARGIN_S))
        self._proposed = [*made.profiles]
        return made.profiles

    def settle(self, cold: dict[str, str], deadline: Deadline) -> Settled:
        """Tell the others which profiles this node cannot show, and why; return what all of them show.

        Raises `StoreError`, on other nodes also `HeadSilent`: then nothing of the proposal may be shown here.
        """
        began = time.monotonic()
        until = deadline.within(self._chosen_by.left())
        if self._record.head:
            choice = self._store.choose(self._place, self._counted(cold, until), deadline)
        else:
            self._store.vote(self._place, Vote(self._place.whose, self._record.node, cold), deadline)
            look = partial(self._store.choice, self._place)
            choice = self._meeting.awaited(self._store, look, until, "chosen nothing")
        return Settled(choice.cold, round(time.monotonic() - began, 3))

    def _counted(self, own: dict[str, str], until: Deadline) -> Choice:
        """Return the choice of the head node by the votes of all nodes; a profile without a vote is cold."""
        votes = {self._record.node: own}
        missing = {*expand(self._meeting.nodelist)} - {self._record.node}
        for _ in looks(until):
            if until.expired():  # the others give up soon
                break
            votes.update({vote.node: vote.cold for vote in self._store.votes(self._place, [*votes], until)})
            missing -= votes.keys()
            if not missing:
                break
        cold: dict[str, Cold] = {}
        for profile in self._proposed:
            against = {node: why for node, given in votes.items() if (why := given.get(profile))}
            against.update(dict.fromkeys(missing, NO_VOTE))
            if against:
                cold[profile] = _cold(against)
        return Choice(self._place.whose, cold)


def _cold(against: Mapping[str, str]) -> Cold:
    """Return one reason of those that nodes gave, with all that follows its colon, and the nodes that gave it."""
    reason = min(why.partition(":")[0] for why in against.values())
    given = {node: why for node, why in against.items() if why.partition(":")[0] == reason}
    details = {detail for why in given.values() for detail in why.partition(": ")[2].split(", ") if detail}
    return Cold(f"{reason}: {', '.join(sorted(details))}" if details else reason, sorted(given))
