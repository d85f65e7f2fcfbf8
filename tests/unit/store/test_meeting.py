"""How a node waits for the head node of its job."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.lib.runs import a_record
from warmstart.host.deadline import after
from warmstart.host.identity import Identity
from warmstart.store.board import Topic, Whose, say, take_down
from warmstart.store.client import StoreClient
from warmstart.store.meeting import HeadSilent, Meeting

pytestmark = pytest.mark.timed

MEETING = Meeting("c.7.0", "caches", "n[1-2]")


class Word(NamedTuple):
    """A notice."""

    text: str
    nodes: list[str] = []  # noqa: RUF012 - never mutated


@pytest.fixture
def store(tmp_path: Path) -> Iterator[StoreClient]:
    """Yield a client of an empty store, of this process's uid."""
    with StoreClient(Identity("me", os.geteuid(), os.getegid()), str(tmp_path), "n1-0a1b2c3d") as client:
        yield client


def test_words_arrive_with_their_types(store: StoreClient) -> None:
    """The first one stays; one of another form is none."""
    board = MEETING.joined(store, a_record())
    assert board.hear("word", Word, after(5)) is None
    assert board.begin("word", Word("a", ["n1"]), after(5)) == Word("a", ["n1"]) == board.hear("word", Word, after(5))
    assert board.say("word", Word("b"), after(5)) == Word("a", ["n1"])
    whose = Whose(a_record().uid, a_record().cluster, "n[1-2]")
    store.run(after(5), say, Topic("c.7.0", "caches", "n2", whose), "x.n2", "7")
    board.say("x.n3", Word("c"), after(5))
    assert board.hear_all("x.", Word, [], after(5)) == {"x.n3": Word("c")}
    assert MEETING._replace(topic="tree").joined(store, a_record()).hear("word", Word, after(5)) is None
    store.run(after(5), take_down, MEETING.path)
    assert board.hear("word", Word, after(5)) is None


def test_it_looks_until_there_is_something(store: StoreClient) -> None:
    """Or until its time is over."""
    board = MEETING.joined(store, a_record())
    seen = iter([None, None, "a word"])
    assert board.await_head(lambda _: next(seen), after(5), "said nothing") == "a word"
    assert not store.head_silent
    with pytest.raises(HeadSilent, match="the head node n1 has said nothing within 0 s"):
        board.await_head(lambda _: None, after(0.1), "said nothing")
    assert store.head_silent
