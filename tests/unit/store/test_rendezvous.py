"""What a job's head node tells the others through the store, and what readers make of anything else there."""

from __future__ import annotations

import json
import os
import re
import stat
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from warmstart.host.wire import Json
from warmstart.store import rendezvous
from warmstart.store.layout import StoreFailed
from warmstart.store.rendezvous import Answer

NAME = rendezvous.name_of("test", 7, 0)
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
ANSWERS = st.builds(
    Answer,
    st.integers(0, 2**32 - 2),
    TEXTS,
    TEXTS,
    TEXTS,
    st.none() | st.lists(st.integers(1, 65535), max_size=3),
    st.none() | TEXTS,
)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(Answer._fields), inner, max_size=6),
    max_leaves=8,
)


@given(ANSWERS)
def test_an_answer_arrives_as_it_was_told(answer: Answer) -> None:
    """Any text and any ports."""
    assert rendezvous._decode(json.loads(rendezvous._encode(answer))) == answer


@given(VALUES)
def test_what_is_no_answer_is_none(value: Json) -> None:
    """Or what there is of one, in the types that readers expect; nothing is raised."""
    answer = rendezvous._decode(value)
    if answer is not None:
        assert (type(answer.uid), type(answer.cluster), type(answer.nodelist)) == (int, str, str)
        assert isinstance(answer.address, str)
        assert answer.ports is None or all(type(port) is int for port in answer.ports)
        assert answer.refused is None or isinstance(answer.refused, str)


@given(st.text(), st.integers(0, 2**32), st.integers(0, 9))
def test_any_clusters_name_is_one_word(cluster: str, job_id: int, restarts: int) -> None:
    """Nothing in it leads to another directory, or ends the name; runs have names of their own."""
    name = rendezvous.name_of(cluster, job_id, restarts)
    assert re.fullmatch(r"[A-Za-z0-9_-]*\.\d+\.\d+\.json", name)
    assert rendezvous.name_of(cluster, job_id, restarts + 1) != name


def test_the_others_see_the_head_nodes_answer(tmp_path: Path) -> None:
    """Not before it is there, and not after it was withdrawn; the store's owner alone reads it."""
    store = str(tmp_path)
    assert rendezvous.look(store, NAME) is None
    rendezvous.withdraw(store, NAME)
    answer = Answer(64201, "test", "n[1-2]", "10.0.0.1", [20000])
    rendezvous.publish(store, NAME, "n1-0a1b2c3d", answer._replace(nodelist="n9"))
    rendezvous.publish(store, NAME, "n1-0a1b2c3d", answer)  # over one that an id's earlier job left
    assert rendezvous.look(store, NAME) == answer
    assert rendezvous.look(store, rendezvous.name_of("test", 7, 1)) is None
    assert stat.S_IMODE((tmp_path / rendezvous.DIRECTORY).stat().st_mode) == 0o700
    for _ in range(2):
        rendezvous.withdraw(store, NAME)
        assert rendezvous.look(store, NAME) is None


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"uid": true}', b"\xff", b'{"uid": 1, "cluster": "c"}'])
def test_a_damaged_answer_is_waited_for(tmp_path: Path, content: bytes) -> None:
    """As if it were not there: the head node replaces it whole."""
    (tmp_path / rendezvous.DIRECTORY).mkdir()
    (tmp_path / rendezvous.DIRECTORY / NAME).write_bytes(content)
    assert rendezvous.look(str(tmp_path), NAME) is None


def test_a_store_that_is_not_there_fails(tmp_path: Path) -> None:
    """It is not made: mostly its file system is not mounted."""
    gone = str(tmp_path / "gone")
    answer = Answer(1, "c", "n1", "a")
    with pytest.raises(StoreFailed, match="publishing"):
        rendezvous.publish(gone, NAME, "n1", answer)
    with pytest.raises(StoreFailed, match="reading"):
        rendezvous.look(gone, NAME)
    with pytest.raises(StoreFailed, match="withdrawing"):
        rendezvous.withdraw(gone, NAME)
    assert os.listdir(tmp_path) == []


def test_what_is_too_long_is_the_stores_failure(tmp_path: Path) -> None:
    """No node reads more than an answer can have."""
    (tmp_path / rendezvous.DIRECTORY).mkdir()
    (tmp_path / rendezvous.DIRECTORY / NAME).write_bytes(b" " * (rendezvous.LONGEST + 1))
    with pytest.raises(StoreFailed, match="larger"):
        rendezvous.look(str(tmp_path), NAME)
