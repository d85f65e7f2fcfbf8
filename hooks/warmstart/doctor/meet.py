"""`warmstart doctor --meet KEY`: several nodes try the store with each other. Started on each by any means.

All say what they do in files of one directory in the store, `.doctor-meet-KEY`, as the store's owner. Each holds a lock
in turn while the others try to take it, so what is proven is what an import relies on: exclusion between nodes, and
that a published file is seen by the others. All print the same results, but for how long they waited for a file.
"""

from __future__ import annotations

import errno
import json
import os
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import NamedTuple

from warmstart.doctor import probe
from warmstart.doctor.finding import ADVICE, CRITICAL, OK, UNKNOWN, WRONG, Result
from warmstart.doctor.store import MOST_AHEAD, RunAs, two_processes
from warmstart.errors import WarmstartError
from warmstart.host.deadline import Deadline, after
from warmstart.policy.compiled import VERSION, Policy

KEY = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")
WAIT_S = 120.0  # for the other nodes, and for each of their answers: NFS may show a new file after a minute (nfs(5))
POLL_S = 0.2
SLOW_S = 5.0  # seconds after which a published file should be visible elsewhere
EXCLUDED, TOOK = "excluded", "took"
ACCOUNTS = ("store_user", "import_user", "validate_user")


class Member(NamedTuple):
    """What one node says of itself."""

    node: str
    ahead: float  # seconds by which the store's clock is ahead of this node's
    uids: dict[str, int]  # by the policy's key
    names: dict[str, str]  # of the accounts
    version: str


class MeetingFailed(Exception):
    """The nodes did not get to an end with each other."""


def meet(policy: Policy, key: str, nodes: int, wait: float = WAIT_S) -> list[Result]:
    """Meet `nodes` nodes, this one included, and return the results. Raises `WorkerSilent` if the store hangs."""
    directory = f"{policy.paths.store}/{probe.PREFIX}meet-{key}"
    with two_processes(policy) as (run, run_second):
        meeting = _Meeting(directory, run, run_second, wait)
        try:
            with meeting.attended(_member(policy)):
                members = meeting.gather(nodes)
                locks = [meeting.round(holder) for holder in members]
                slowest = meeting.part()
        except MeetingFailed as error:
            return [Result("meet.nodes", UNKNOWN, str(error), "start it on all nodes at once, with the same key")]
        except OSError as error:
            return [_no_entry(policy, directory, run, error)]
    return _results(list(members.values()), [line for lines in locks for line in lines], slowest)


def _member(policy: Policy) -> Member:
    accounts = {key: getattr(policy, key) for key in ACCOUNTS}
    uids = {key: account.uid for key, account in accounts.items()}
    names = {key: account.name for key, account in accounts.items()}
    return Member(os.uname().nodename, 0.0, uids, names, VERSION)


class _Meeting:
    def __init__(self, directory: str, run: RunAs, run_second: RunAs, wait: float) -> None:
        self._directory = directory
        self._run = run
        self._run_second = run_second
        self._wait = wait
        self._me = f"{os.uname().nodename.partition('.')[0]}-{os.getpid()}"
        self._ahead = 0.0
        self._heard: dict[str, str] = {}
        self._names: list[str] = []
        self._slowest = 0.0

    @contextmanager
    def attended(self, me: Member) -> Iterator[None]:
        """Enter the meeting for a `with` block, and leave no file behind."""
        self._run(probe.enter_meeting, self._directory, self._me)
        try:
            self._ahead = self._run(probe.clock_ahead, self._directory, f"clock.{self._me}")
            self._say("member", json.dumps(me._replace(ahead=self._ahead)))
            yield
        finally:
            with suppress(OSError, WarmstartError):
                self._run(probe.leave_meeting, self._directory, self._me)

    def gather(self, nodes: int) -> dict[str, Member]:
        """Wait for all nodes and return them by their names in the meeting, sorted."""
        try:
            self._until(lambda: len(self._named("member")) >= nodes)
        except MeetingFailed:
            came = ", ".join(sorted(name.rpartition("-")[0] for name in self._named("member")))
            number = len(self._named("member"))
            raise MeetingFailed(f"{number} of {nodes} nodes came within {self._wait:.0f} s: {came}") from None
        members = self._named("member")
        return {name: Member(*json.loads(members[name])) for name in sorted(members)}

    def round(self, holder: str) -> list[tuple[str, str, str]]:
        """Let `holder` take a lock, the others try, and after its release take it. Return (holder, other, result)."""
        others = sorted(set(self._named("member")) - {holder})
        if holder == self._me:
            self._hold(others)
        elif self._answer(f"held.{holder}"):
            self._say(f"tried.{holder}", f"error: {self._heard[f'held.{holder}']}")
        else:
            self._say(f"tried.{holder}", self._try(holder))
            self._answer(f"released.{holder}")
            self._say(f"after.{holder}", self._take(holder))
        kinds = ("tried",) if self._heard[f"held.{holder}"] else ("tried", "after")
        return [
            (holder, other, f"{kind} {self._answer(f'{kind}.{holder}.{other}')}") for kind in kinds for other in others
        ]

    def part(self) -> float:
        """Wait until all have all answers. Return after how many seconds, at most, another's file was seen."""
        self._say("done", "")
        self._until(
            lambda: all(f"done.{name}" in self._heard or self._has_left(name) for name in self._named("member"))
        )
        return self._slowest

    def _has_left(self, name: str) -> bool:
        """Return whether a node has removed its files, which it does when all others are done with them."""
        return f"member.{name}" not in self._names

    def _hold(self, others: list[str]) -> None:
        try:
            self._run_second(probe.hold_lock, self._directory, f"lock.{self._me}")
        except OSError as error:
            self._say("held", error.strerror or str(error))
            return
        self._say("held", "")
        for other in others:
            self._answer(f"tried.{self._me}.{other}")
        self._run_second(probe.release_lock)
        self._say("released", "")
        for other in others:
            self._answer(f"after.{self._me}.{other}")

    def _try(self, holder: str) -> str:
        took = self._run(probe.lock_is_free, self._directory, f"lock.{holder}")
        return TOOK if took else EXCLUDED

    def _take(self, holder: str) -> str:
        deadline = after(self._wait)
        while self._try(holder) == EXCLUDED:
            if deadline.expired():
                return EXCLUDED
            time.sleep(POLL_S)
        return TOOK

    def _say(self, what: str, text: str) -> None:
        name = f"{what}.{self._me}"
        self._run(probe.say, self._directory, name, text)
        self._heard[name] = text

    def _answer(self, name: str) -> str:
        self._until(lambda: name in self._heard)
        return self._heard[name]

    def _named(self, kind: str) -> dict[str, str]:
        return {name.partition(".")[2]: text for name, text in self._heard.items() if name.startswith(f"{kind}.")}

    def _until(self, is_done: Callable[[], bool]) -> None:
        deadline: Deadline = after(self._wait)
        while not is_done():
            if deadline.expired():
                raise MeetingFailed(f"another node gave no answer within {self._wait:.0f} s")
            time.sleep(POLL_S)
            heard = self._run(probe.hear, self._directory, sorted(self._heard))
            self._names = heard.names
            for said in heard.new:
                self._heard[said.name] = said.text
                if not said.name.startswith("member."):  # those may be older than this node's entry
                    # Compared with the store's clock, which stamped the file.
                    self._slowest = max(self._slowest, time.time() + self._ahead - said.at)


def _no_entry(policy: Policy, directory: str, run: RunAs, error: OSError) -> Result:
    """Return why this node cannot enter, or go on: mostly other uids than on the node that came first."""
    user = policy.store_user
    with suppress(OSError):
        owner = run(probe.owner, directory)
        if error.errno == errno.EACCES and owner != user.uid:
            found = f"another node's store_user has uid {owner}; here {user.name} is {user.uid}"
            return Result("meet.ids", CRITICAL, found, "give the accounts the same uids on every node")
    return Result(
        "meet.nodes", UNKNOWN, f"{directory}: {error.strerror}", "see the store's other checks: `warmstart doctor`"
    )


def _results(members: list[Member], locks: list[tuple[str, str, str]], slowest: float) -> list[Result]:
    nodes = ", ".join(member.node for member in members)
    return [
        Result("meet.nodes", OK, f"{nodes} met in the store", ""),
        _locks(locks),
        _visible(slowest),
        _clocks(members),
        *_ids(members),
    ]


def _locks(locks: list[tuple[str, str, str]]) -> Result:
    mount = "mount the file system with locks between nodes (docs/operations/filesystems.md)"
    errors = [said.removeprefix("tried error: ") for _, _, said in locks if said.startswith("tried error")]
    broken = [(holder, other) for holder, other, said in locks if said == f"tried {TOOK}"]
    stuck = [(holder, other) for holder, other, said in locks if said == f"after {EXCLUDED}"]
    if errors:
        return Result("meet.locks", WRONG, f"flock(2) in the store fails: {errors[0]}", mount)
    if broken:
        pairs = ", ".join(f"{other} while {holder} held it" for holder, other in broken)
        return Result("meet.locks", WRONG, f"locks do not exclude other nodes: took a lock {pairs}", mount)
    if stuck:
        pairs = ", ".join(f"{other} after {holder} released it" for holder, other in stuck)
        return Result("meet.locks", WRONG, f"a released lock stays taken: {pairs}", mount)
    return Result("meet.locks", OK, f"flock(2) excludes other nodes ({len(locks)} attempts)", "")


def _visible(slowest: float) -> Result:
    words = f"what other nodes publish is visible on this one within {max(slowest, POLL_S):.1f} s"
    if slowest > SLOW_S:
        change = "reduce the directories' cache time (NFS: acdirmax), or set rendezvous.wait above it"
        return Result("meet.publishing", ADVICE, words, change)
    return Result("meet.publishing", OK, words, "")


def _clocks(members: list[Member]) -> Result:
    first, last = max(members, key=lambda m: m.ahead), min(members, key=lambda m: m.ahead)
    apart = first.ahead - last.ahead
    if apart > MOST_AHEAD:
        found = f"the clock of {last.node} is {apart:.1f} s ahead of that of {first.node}"
        return Result("meet.clocks", WRONG, found, "synchronise both clocks (chrony, ntp)")
    return Result("meet.clocks", OK, f"the clocks agree to {max(apart, 0.1):.1f} s", "")


def _ids(members: list[Member]) -> Iterator[Result]:
    bad = []
    for key in ACCOUNTS:
        by_node = {f"{member.names[key]} {member.uids[key]}": member.node for member in members}
        if len(by_node) > 1:
            bad.append(f"{key} is {', '.join(f'{account} on {node}' for account, node in by_node.items())}")
    if bad:
        yield Result("meet.ids", CRITICAL, "; ".join(bad), "give the accounts the same names and uids on every node")
    else:
        yield Result("meet.ids", OK, "the accounts have the same names and uids", "")
    releases = {member.version: member.node for member in members}
    if len(releases) > 1:
        several = ", ".join(f"{version} on {node}" for version, node in releases.items())
        yield Result("meet.releases", ADVICE, f"the nodes have several releases: {several}", "finish the upgrade")
