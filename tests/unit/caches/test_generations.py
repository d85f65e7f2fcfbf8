"""Every order of every step of writers, a cleaner and readers: the code itself, over a directory in memory.

A writer's state is what its calls have answered so far: to take one more step it runs anew with these answers, up to
the next call. So all states that can be reached are reached, with writers that die or sleep for as long as they like
between any two calls, and a cleaner without a clock.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import NamedTuple

import pytest

from tests.lib.bundles import OWNER
from warmstart.caches.store import generations
from warmstart.caches.store.layout import Namespace
from warmstart.caches.store.listing import Listing, Row, decode
from warmstart.store.layout import StoreFailed

WHERE = Namespace("/nowhere", "site", "numba", "ns")
READER = "!"
GONE = None  # the answer of a call whose file is not there


def with_row(name: str) -> generations.Merge:
    """Return what adds a row, unless it is there."""
    row = Row(name * 64, 1, 1, "a", 1, 7, 0)

    def merge(old: Listing) -> Listing | None:
        if row in old.rows:
            return None
        return old._replace(rows=[*old.rows, row], names=[*old.names, [name]], lost=[*old.lost, []])

    return merge


class _Next(BaseException):
    """An actor's next call: nothing of it was done yet."""


class _Anew(BaseException):
    """A writer begins anew."""


class Files(NamedTuple):
    """The directory: numbers, each with the identity of its generation."""

    there: frozenset[tuple[int, str]]

    def get(self, number: int) -> str | None:
        return dict(self.there).get(number)

    def newest(self) -> str:
        return max(self.there)[1] if self.there else ""


class Model:
    """The directory as the actors see it."""

    def __init__(self) -> None:
        self.files = Files(frozenset())
        self.known: dict[str, Listing] = {"": Listing()}
        self.answers: list[object] = []  # of the actor that runs, to be taken before anything is done
        self.taken = 0
        self.new: object = _Next
        self.forgets = False  # whether a writer that begins anew is one that begins: else each try makes new states

    def call(self, act: Callable[[], object]) -> object:
        """Answer a call of the actor that runs: as before; by doing it, once; or not at all, after that."""
        if self.taken < len(self.answers):
            self.taken += 1
            return self.answers[self.taken - 1]
        if self.new is not _Next:
            raise _Next
        self.new = act()
        self.answers.append(self.new)
        self.taken += 1
        return self.new

    def step(
        self, files: Files, answers: tuple[object, ...], act: Callable[[], object]
    ) -> tuple[Files, tuple[object, ...], bool]:
        """Do an actor's next call; return the directory, its answers with that one, and whether it has ended."""
        self.files, self.answers, self.taken, self.new = files, [*answers], 0, _Next
        try:
            act()
        except _Next:
            return self.files, tuple(self.answers), False
        except _Anew:
            return self.files, (), False
        return self.files, tuple(self.answers), True

    # What takes the place of functions of `generations`.

    def listdir(self, _where: object) -> list[str]:
        names = self.call(lambda: tuple(f"{number:08d}" for number, _ in sorted(self.files.there)))
        return [*names]  # type: ignore[misc]

    def open(self, _where: Namespace, number: int, *, named: bool) -> Listing:  # noqa: ARG002
        found = self.call(lambda: self.files.get(number))
        if found is GONE:
            raise FileNotFoundError(errno.ENOENT, "gone")
        return self.known[str(found)]

    def linked(self, _where: Namespace, _writer: str, number: int, text: bytes) -> bool:
        def link() -> bool:
            if self.files.get(number) is not None:
                return False
            self.files = Files(self.files.there | {(number, text[:64].decode())})
            return True

        self.known[text[:64].decode()] = decode(text, "here", named=True)
        return bool(self.call(link))

    def sleep(self, _seconds: float) -> None:
        if self.forgets:
            raise _Anew

    def unlink(self, name: str, _fd: int) -> bool:
        def drop() -> bool:
            self.files = Files(frozenset(one for one in self.files.there if one[0] != int(name)))
            return True

        return bool(self.call(drop))


@pytest.fixture
def model(monkeypatch: pytest.MonkeyPatch) -> Model:
    made = Model()

    @contextmanager
    def opened(_path: str) -> Iterator[int]:
        yield 3

    for name, value in {
        "os": SimpleNamespace(listdir=made.listdir), "opened_dir": opened, "_open": made.open, "_linked": made.linked,
        "unlink_if_there": made.unlink, "changed": lambda _name, _fd: 0.0, "_clean": lambda *_: [],
        "_READS": 2, "TRIES": 3, "time": SimpleNamespace(sleep=made.sleep),
    }.items():  # fmt: skip
        monkeypatch.setattr(generations, name, value)
    return made


class State(NamedTuple):
    """What is there, what each actor was answered, and how many files may still be removed."""

    files: Files
    answers: tuple[tuple[object, ...], ...]  # a reader's begin with the rows that it is to see
    done: frozenset[str]  # rows of writers that have ended well
    ended: frozenset[int]
    removals: int


def rows(model: Model, identity: str) -> frozenset[str]:
    return frozenset(row.sha256[0] for row in model.known[identity].rows)


def explore(model: Model, actors: str, removals: int) -> tuple[int, str]:
    """Let writers, and with ! a reader, do all that they may; return the number of states, and what is wrong in one."""
    start = State(Files(frozenset()), ((),) * len(actors), frozenset(), frozenset(), removals)
    seen, todo = {start}, [start]
    while todo:
        state = todo.pop()
        for one in following(model, state, actors):
            if isinstance(one, str):
                return len(seen), one
            if not rows(model, state.files.newest()) | one.done <= rows(model, one.files.newest()):
                return len(seen), f"a row got lost: {sorted(one.files.there)}"
            if one not in seen:
                seen.add(one)
                todo.append(one)
    return len(seen), ""


def following(model: Model, state: State, actors: str) -> Iterator[State | str]:
    """Yield the states after one step of anybody, or what is wrong."""
    for number, name in enumerate(actors):
        if number in state.ended:
            continue
        done, ended = state.done, frozenset({number})

        def act(name: str = name, done: frozenset[str] = done) -> None:
            if name != READER:
                generations.change(WHERE, OWNER, with_row(name))
                return
            expected = model.call(lambda: done)
            assert expected <= rows(model, generations.read(WHERE, named=False).identity)  # type: ignore[operator]

        try:
            files, answers, has_ended = model.step(state.files, state.answers[number], act)
        except AssertionError:
            yield f"a reader sees less than there is: {sorted(state.files.there)}"
            return
        except StoreFailed:  # others were first: it waits in its queue, and counts for one that died
            yield state._replace(ended=state.ended | ended)
            continue
        every = (*state.answers[:number], () if has_ended else answers, *state.answers[number + 1 :])
        done, ended = (done | {name} - {READER}, state.ended | ended) if has_ended else (done, state.ended)
        yield State(files, every, done, ended, state.removals)
    if state.removals:
        for one in state.files.there - {max(state.files.there, default=(0, ""))}:
            yield state._replace(files=Files(state.files.there - {one}), removals=state.removals - 1)


@pytest.mark.parametrize(
    ("actors", "removals", "forgets"), [("ab!", 4, False), pytest.param("abc", 1, True, marks=pytest.mark.sweep)]
)
def test_every_order(model: Model, actors: str, removals: int, forgets: bool) -> None:
    model.forgets = forgets
    states, fault = explore(model, actors, removals)
    assert not fault
    assert states > 2000


def test_without_the_second_look_a_row_gets_lost(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(generations, "_stands", lambda *_: True)
    _, fault = explore(model, "abc", 3)
    assert fault
