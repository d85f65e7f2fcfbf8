"""What a job's nodes tell each other through the store: written once, and only of this run of this job."""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

import pytest

from warmstart.host.deadline import after
from warmstart.host.identity import Identity
from warmstart.store import barrier
from warmstart.store.barrier import Barrier
from warmstart.store.client import StoreClient
from warmstart.store.layout import StoreFailed

JOB = Barrier.of(("c", 2001), 7, 0, "caches", "n[1-2]")
TOPIC = JOB.topic_of(StoreClient(Identity("me", os.geteuid(), os.getegid()), "", "n1-0a1b2c3d"))
OTHERS = [
    Barrier.of((cluster, uid), 7, 0, "caches", nodes)
    for cluster, uid, nodes in (("c", 2002, "n[1-2]"), ("c.", 2001, "n[1-2]"), ("c", 2001, "n1"))
]


@pytest.fixture
def store(tmp_path: Path) -> str:
    return str(tmp_path)


def test_what_was_said_first_stays_and_is_heard_in_its_topic_alone(store: str) -> None:
    other = TOPIC._replace(beginning=TOPIC.beginning.replace("caches", "caches2"))
    assert (barrier.hear(store, TOPIC, "proposal"), barrier.marks(store, TOPIC, "vote.")) == (None, [])
    said = [barrier.say(store, TOPIC, "proposal", text, True) for text in ("first", "second")]
    assert said == ["first", "first"]
    barrier.say(store, other, "proposal", "other", True)
    assert [barrier.say(store, TOPIC, "why.n2", word, False) for word in ("no", "yes")] == ["no", "no"]
    for name in ("vote.n2.1", "vote.n3.example.com.0", "vote.n2.1"):
        barrier.mark(store, TOPIC, name)
    assert [barrier.hear(store, other, name) for name in ("proposal", "choice")] == ["other", None]
    assert [barrier.hear(store, TOPIC, name) for name in ("proposal", "why.n2", "why.n3")] == ["first", "no", None]
    assert sorted(barrier.marks(store, TOPIC, "vote.")) == ["n2.1", "n3.example.com.0"]
    assert os.stat(f"{store}/{barrier.DIRECTORY}").st_mode & 0o777 == 0o700


@pytest.mark.parametrize("whose", OTHERS)
def test_what_another_job_of_the_same_id_left_is_passed_over_and_goes(store: str, whose: Barrier) -> None:
    earlier = TOPIC._replace(beginning=f"caches.{whose.key}.")
    barrier.say(store, earlier, "proposal", "old", True)
    barrier.mark(store, earlier, "vote.n2.0")
    assert (barrier.hear(store, TOPIC, "proposal"), barrier.marks(store, TOPIC, "vote.")) == (None, [])
    assert barrier.say(store, TOPIC, "proposal", "new", True) == "new"
    barrier.take_down(store, JOB.path)
    assert os.listdir(f"{store}/{barrier.DIRECTORY}") == []


def test_a_runs_directory_goes_with_its_last_topic_and_who_is_late_says_nothing(store: str) -> None:
    other = TOPIC._replace(beginning="images.0.")
    barrier.say(store, TOPIC, "proposal", "a", True)
    barrier.say(store, other, "word", "b", True)
    barrier.take_down(store, JOB.path)
    assert barrier.hear(store, other, "word") == "b"
    for _ in range(2):
        barrier.take_down(store, f"{JOB.run}/images")
    assert os.listdir(f"{store}/{barrier.DIRECTORY}") == []
    with pytest.raises(StoreFailed):
        barrier.say(store, TOPIC, "why.n2", "late", False)
    with pytest.raises(StoreFailed):
        barrier.mark(store, TOPIC, "vote.n2.0")


class Word(NamedTuple):
    """A message."""

    text: str
    nodes: tuple[str, ...] = ()


@pytest.mark.parametrize("text", ["7", "{}", "{", "[" * 5000, ""])
def test_a_message_of_another_form_is_none(tmp_path: Path, text: str) -> None:
    store = StoreClient(Identity("me", os.geteuid(), os.getegid()), str(tmp_path), "n1-0a1b2c3d")
    assert JOB.begin(store, "word", Word("a", ("n1",)), after(5)) == Word("a", ("n1",))
    store.run(after(5), barrier.say, JOB.topic_of(store), "x.n2", text, False)
    assert [JOB.hear(store, name, Word, after(5)) for name in ("x.n2", "x.n3")] == [None, None]
