"""Where the nodes of a job meet: the root's side of the board, and how a node waits there. Runs as root.

Hot path of jobs on several nodes.
"""

from __future__ import annotations

import time

from warmstart.errors import StoreError
from warmstart.host import wire
from warmstart.host.deadline import Deadline, after, looks
from warmstart.lean import TYPE_CHECKING, Callable, Iterator, NamedTuple, contextmanager, dumps, suppress
from warmstart.run.state import Run
from warmstart.slurm.nodes import first
from warmstart.store import board
from warmstart.store.board import Topic, Whose
from warmstart.store.client import StoreClient

if TYPE_CHECKING:
    from typing import Protocol, TypeVar

    class Notice(Protocol):
        """A NamedTuple that can be said."""

        def _asdict(self) -> dict[str, object]: ...

    N = TypeVar("N", bound=Notice)
    T = TypeVar("T")

LOOK_S = 5.0  # for one question to the store


class HeadSilent(StoreError):
    """A node did not learn in time what the head node found, proposed or chose."""

    code = "head-silent"
    template = "the head node {head} has {what} within {seconds} s"
    hint = "check whether its prolog failed or started late (PrologFlags=Alloc), and whether the nodes share the store"


def _nobody(_: bool) -> None:
    """Do nothing."""


class Meeting(NamedTuple):
    """Where the nodes of one run of a job meet, and about what."""

    run: str  # `board.run_of`
    topic: str
    nodelist: str  # of those who meet: the job's, the component's, or a step's
    waits: Callable[[bool], object] = _nobody  # is told when this node begins to wait for others, and when it goes on

    def joined(self, store: StoreClient, run: Run) -> Board:
        """Return this node's side of it."""
        whose = Whose(run.uid, run.cluster, self.nodelist)
        return Board(store, Topic(self.run, self.topic, store.writer, whose), self.waits)

    @property
    def path(self) -> str:
        """What the node that began it takes down at its end."""
        return f"{self.run}/{self.topic}"


class Board:
    """One topic, as one node says and hears it. Each call raises `StoreError`."""

    def __init__(self, store: StoreClient, topic: Topic, waits: Callable[[bool], object] = _nobody) -> None:
        """Say nothing yet."""
        self._store = store
        self._topic = topic
        self._waits = waits

    def begin(self, notice: str, value: N, deadline: Deadline) -> N:
        """Say the first notice; return it, or what an earlier prolog of this run has said."""
        return self._said(self._store.run(deadline, board.begin, self._topic, notice, _text(value)), value)

    def say(self, notice: str, value: N, deadline: Deadline) -> N:
        """Say a notice; return it, or what was said there before."""
        return self._said(self._store.run(deadline, board.say, self._topic, notice, _text(value)), value)

    def hear(self, notice: str, kind: type[N], deadline: Deadline) -> N | None:
        """Return a notice; None while it was not said, or where it has another release's form."""
        return self.hear_all(notice, kind, [], deadline).get(notice)

    def hear_all(self, notice: str, kind: type[N], known: list[str], deadline: Deadline) -> dict[str, N]:
        """Return the notices that begin with `notice`, which ends in a dot, without those that are `known`."""
        texts = self._store.look(deadline, board.hear, self._topic, [notice], known)
        read = {name: _read(kind, text) for name, text in texts.items()}
        return {name: value for name, value in read.items() if value is not None}

    def await_head(self, look: Callable[[Deadline], T | None], until: Deadline, what: str) -> T:
        """Look until there is something; return it. Raises `HeadSilent`: the head node has `what`.

        The client of the store keeps whether the head node was silent last, for what need not wait for it again.
        """
        began = time.monotonic()
        with self.waiting():
            for _ in looks(until):
                if (seen := look(after(LOOK_S))) is not None:
                    self._store.head_silent = False
                    return seen
        self._store.head_silent = True
        head = first(self._topic.whose.nodelist) or "of the leading component"
        raise HeadSilent(head=head, what=what, seconds=round(time.monotonic() - began))

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Tell for a `with` that this node waits for others (`Meeting.waits`)."""
        self._waits(True)
        try:
            yield
        finally:
            self._waits(False)

    def _said(self, text: str, value: N) -> N:
        return _read(type(value), text) or value


def _text(value: Notice) -> str:
    return dumps(value._asdict())


def _read(kind: type[N], text: str) -> N | None:
    with suppress(ValueError):
        return wire.from_object(kind, wire.parse(text.encode()))
    return None
