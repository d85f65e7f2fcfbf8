"""What a job's nodes tell each other through the store: written once, and only of this run of this job."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from warmstart.store import board
from warmstart.store.board import Topic, Whose
from warmstart.store.layout import StoreFailed

TOPIC = Topic(board.run_of("c", 7, 0), "caches", "n1-0a1b2c3d", Whose(2001, "c", "n[1-2]"))
ANOTHERS = [TOPIC.whose._replace(uid=2002), TOPIC.whose._replace(cluster="d"), TOPIC.whose._replace(nodelist="n1")]


@pytest.fixture
def store(tmp_path: Path) -> str:
    """Return an empty store."""
    return str(tmp_path)


def heard(store: str, *notices: str, topic: Topic = TOPIC) -> dict[str, str]:
    """Return what a node of the job hears."""
    return board.hear(store, topic, list(notices), [])


def test_a_notice_arrives_as_it_was_said(store: str) -> None:
    """And is there only once it was said; nobody but the store's owner can read it."""
    assert heard(store, "proposal") == {}
    assert board.begin(store, TOPIC, "proposal", '{"a": 1}') == '{"a": 1}'
    assert heard(store, "proposal", "choice") == {"proposal": '{"a": 1}'}
    assert os.stat(f"{store}/{board.DIRECTORY}").st_mode & 0o777 == 0o700


def test_what_was_said_stays(store: str) -> None:
    """A prolog that runs again is told what it said before."""
    board.begin(store, TOPIC, "proposal", "first")
    assert board.begin(store, TOPIC, "proposal", "second") == "first"
    board.say(store, TOPIC, "vote.n2", "no")
    assert board.say(store, TOPIC, "vote.n2", "yes") == "no"
    board.say(store, TOPIC, "vote.n3.example.com", "yes")
    assert board.hear(store, TOPIC, ["vote."], []) == {"vote.n2": "no", "vote.n3.example.com": "yes"}
    assert board.hear(store, TOPIC, ["vote."], ["vote.n2"]) == {"vote.n3.example.com": "yes"}


def test_topics_do_not_hear_each_other(store: str) -> None:
    """Not even where one's name begins as the other's."""
    other = TOPIC._replace(name="caches2")
    board.begin(store, TOPIC, "proposal", "a")
    board.begin(store, other, "proposal", "b")
    assert (heard(store, "proposal"), heard(store, "proposal", topic=other)) == ({"proposal": "a"}, {"proposal": "b"})
    board.take_down(store, other.path)
    assert (heard(store, "proposal"), heard(store, "proposal", topic=other)) == ({"proposal": "a"}, {})


@pytest.mark.parametrize("whose", ANOTHERS)
def test_what_an_earlier_job_of_the_same_id_left_is_passed_over(store: str, whose: Whose) -> None:
    """It goes when this job's node begins the topic."""
    earlier = TOPIC._replace(whose=whose)
    board.begin(store, earlier, "proposal", "old")
    board.say(store, earlier, "vote.n2", "old")
    assert heard(store, "proposal", "vote.") == {}
    assert board.begin(store, TOPIC, "proposal", "new") == "new"
    assert os.listdir(f"{store}/{board.DIRECTORY}/{TOPIC.run}") == ["caches.proposal"]
    assert heard(store, "proposal", topic=earlier) == {}


@pytest.mark.parametrize("data", [b"", b"{}", b"{", b'[2001, "c", "n[1-2]"]', b'[2001, "c", "n[1-2]", 7]', b"[" * 5000])
def test_what_is_no_notice_is_none(store: str, data: bytes) -> None:
    """It is said anew."""
    place = Path(store, board.DIRECTORY, TOPIC.run)
    place.mkdir(parents=True)
    for name in ("proposal", "vote.n2"):
        (place / f"caches.{name}").write_bytes(data)
    assert heard(store, "proposal", "vote.") == {}
    assert board.begin(store, TOPIC, "proposal", "new") == "new"
    assert heard(store, "proposal", "vote.") == {"proposal": "new"}


def test_a_topic_is_taken_down(store: str) -> None:
    """As often as anybody likes; who comes late says nothing any more. The board goes with its last topic."""
    other = TOPIC._replace(name="images")
    board.begin(store, TOPIC, "proposal", "a")
    board.begin(store, other, "word", "b")
    for topic in (TOPIC, other, other):
        assert os.listdir(f"{store}/{board.DIRECTORY}") != [] or topic == other
        board.take_down(store, topic.path)
    assert os.listdir(f"{store}/{board.DIRECTORY}") == []
    with pytest.raises(StoreFailed):
        board.say(store, TOPIC, "vote.n2", "late")


def test_a_store_that_is_away_is_an_error(store: str) -> None:
    """It is never made: a missing one is usually not mounted. Nothing was said there, and nothing is left."""
    with pytest.raises(StoreFailed, match=r"writing proposal of c\.7\.0/caches"):
        board.begin(f"{store}/away", TOPIC, "proposal", "a")


def test_a_clusters_name_cannot_lead_elsewhere() -> None:
    """It is a part of a directory's name, whatever slurm.conf says."""
    assert board.run_of("../a b", 7, 1) == "___a_b.7.1"


def an_old_listing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the next listing show nothing, as one of a network file system may."""
    real = os.listdir

    def old(_fd: int) -> list[str]:
        monkeypatch.setattr(os, "listdir", real)
        return []

    monkeypatch.setattr(os, "listdir", old)


@pytest.mark.parametrize("whose", ANOTHERS)
def test_what_an_old_listing_hides_of_an_earlier_job_gives_way(
    store: str, monkeypatch: pytest.MonkeyPatch, whose: Whose
) -> None:
    """Else this job's nodes would hear nothing."""
    board.begin(store, TOPIC._replace(whose=whose), "proposal", "old")
    an_old_listing(monkeypatch)
    assert board.begin(store, TOPIC, "proposal", "new") == "new"
    assert heard(store, "proposal") == {"proposal": "new"}


@pytest.mark.parametrize("others", [True, False])
def test_what_an_old_listing_hides_is_taken_down(store: str, monkeypatch: pytest.MonkeyPatch, others: bool) -> None:
    """Beside another topic, too."""
    board.begin(store, TOPIC, "proposal", "a")
    if others:
        board.begin(store, TOPIC._replace(name="images"), "word", "x")
    an_old_listing(monkeypatch)
    board.take_down(store, TOPIC.path)
    assert heard(store, "proposal") == {}
    assert os.path.exists(f"{store}/{board.DIRECTORY}/{TOPIC.run}") is others
