"""What a job's nodes tell each other through the store: written once, and only of this run of this job."""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.lib.runs import a_run
from warmstart.host.deadline import after
from warmstart.host.identity import Identity
from warmstart.store import board
from warmstart.store.board import Topic, Whose
from warmstart.store.client import StoreClient
from warmstart.store.layout import StoreFailed
from warmstart.store.meeting import Meeting

TOPIC = Topic(board.run_of("c", 7, 0), "caches", "n1-0a1b2c3d", Whose(2001, "c", "n[1-2]"))
ANOTHERS = [TOPIC.whose._replace(uid=2002), TOPIC.whose._replace(cluster="d"), TOPIC.whose._replace(nodelist="n1")]


@pytest.fixture
def store(tmp_path: Path) -> str:
    return str(tmp_path)


def heard(store: str, *notices: str, topic: Topic = TOPIC) -> dict[str, str]:
    return board.hear(store, topic, list(notices), [])


def test_what_was_said_first_stays_and_is_heard_in_its_topic_alone(store: str) -> None:
    other = TOPIC._replace(name="caches2")
    assert heard(store, "proposal") == {}
    assert board.begin(store, TOPIC, "proposal", "first") == board.begin(store, TOPIC, "proposal", "second") == "first"
    board.begin(store, other, "proposal", "other")
    for word in ("no", "yes"):
        assert board.say(store, TOPIC, "vote.n2", word) == "no"
    board.say(store, TOPIC, "vote.n3.example.com", "yes")
    assert heard(store, "proposal", "choice", topic=other) == {"proposal": "other"}
    assert heard(store, "vote.") == {"vote.n2": "no", "vote.n3.example.com": "yes"}
    assert board.hear(store, TOPIC, ["vote."], ["vote.n2"]) == {"vote.n3.example.com": "yes"}
    assert os.stat(f"{store}/{board.DIRECTORY}").st_mode & 0o777 == 0o700


@pytest.mark.parametrize("whose", ANOTHERS)
def test_what_an_earlier_job_of_the_same_id_left_is_passed_over(store: str, whose: Whose) -> None:
    earlier = TOPIC._replace(whose=whose)
    board.begin(store, earlier, "proposal", "old")
    board.say(store, earlier, "vote.n2", "old")
    assert heard(store, "proposal", "vote.") == {}
    assert board.begin(store, TOPIC, "proposal", "new") == "new"
    assert os.listdir(f"{store}/{board.DIRECTORY}/{TOPIC.run}") == ["caches.proposal"]
    assert heard(store, "proposal", topic=earlier) == {}


@pytest.mark.parametrize("data", [b"", b"{}", b"{", b'[2001, "c", "n[1-2]"]', b'[2001, "c", "n[1-2]", 7]', b"[" * 5000])
def test_what_is_no_notice_is_said_anew(store: str, data: bytes) -> None:
    place = Path(store, board.DIRECTORY, TOPIC.run)
    place.mkdir(parents=True)
    for name in ("proposal", "vote.n2"):
        (place / f"caches.{name}").write_bytes(data)
    assert heard(store, "proposal", "vote.") == {}
    assert board.begin(store, TOPIC, "proposal", "new") == "new"
    assert heard(store, "proposal", "vote.") == {"proposal": "new"}


def test_the_board_goes_with_its_last_topic_and_who_is_late_says_nothing(store: str) -> None:
    other = TOPIC._replace(name="images")
    board.begin(store, TOPIC, "proposal", "a")
    board.begin(store, other, "word", "b")
    board.take_down(store, TOPIC.path)
    assert heard(store, "word", topic=other) == {"word": "b"}
    for _ in range(2):
        board.take_down(store, other.path)
    assert os.listdir(f"{store}/{board.DIRECTORY}") == []
    with pytest.raises(StoreFailed):
        board.say(store, TOPIC, "vote.n2", "late")


class Word(NamedTuple):
    """A notice of a meeting."""

    text: str
    nodes: tuple[str, ...] = ()


def test_a_word_of_another_type_is_none(tmp_path: Path) -> None:
    with StoreClient(Identity("me", os.geteuid(), os.getegid()), str(tmp_path), "n1-0a1b2c3d") as store:
        joined = Meeting("c.7.0", "caches", "n[1-2]").joined(store, a_run())
        assert joined.begin("word", Word("a", ("n1",)), after(5)) == Word("a", ("n1",))
        whose = Whose(a_run().uid, a_run().cluster, "n[1-2]")
        store.run(after(5), board.say, Topic("c.7.0", "caches", "n2", whose), "x.n2", "7")
        joined.say("x.n3", Word("c"), after(5))
        assert joined.hear_all("x.", Word, [], after(5)) == {"x.n3": Word("c")}
