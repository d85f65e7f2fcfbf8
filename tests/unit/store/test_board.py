"""What a job's nodes tell each other through the store: written once, and only of this run of this job."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from warmstart.store import agreement
from warmstart.store.agreement import (
    Choice,
    Cold,
    HeadImage,
    HeadImages,
    Place,
    Proposal,
    ProposedBundle,
    ProposedProfile,
    Vote,
    Whose,
)
from warmstart.store.layout import StoreFailed

WHOSE = Whose(2001, "c", "n[1-2]")
OFFER = ProposedBundle("user-2001-a", "20260101T000000.000000Z-0a1b2c3d", "0" * 64, 10, ["e"], whole=False)
PROPOSAL = Proposal(WHOSE, {"alpha": ProposedProfile("f" * 32, {"cpu": "x"}, [OFFER])})


@pytest.fixture
def place(tmp_path: Path) -> Place:
    """Return where one run of a job agrees."""
    return Place(str(tmp_path), agreement.name_of("c", 7, 0), "n1-0a1b2c3d", WHOSE)


def test_a_proposal_arrives_as_it_was_made(place: Place) -> None:
    """And is there only once it was made."""
    assert agreement.proposal(place) is None
    assert agreement.propose(place, PROPOSAL) == PROPOSAL
    assert agreement.proposal(place) == PROPOSAL


def test_what_was_said_stays(place: Place) -> None:
    """A prolog that runs again is told what it said before."""
    agreement.propose(place, PROPOSAL)
    again = Proposal(WHOSE, {})
    assert agreement.propose(place, again) == PROPOSAL
    warm, cold = Choice(WHOSE, {}), Choice(WHOSE, {"alpha": Cold("no-vote", ["n2"])})
    assert agreement.choose(place, cold) == cold == agreement.choose(place, warm) == agreement.choice(place)
    agreement.vote(place, Vote(WHOSE, "n2", {"alpha": "seed-failed"}))
    agreement.vote(place, Vote(WHOSE, "n2", {}))
    assert agreement.votes(place, []) == [Vote(WHOSE, "n2", {"alpha": "seed-failed"})]
    assert agreement.votes(place, ["n2"]) == []


def test_the_images_come_before_the_proposal(place: Place) -> None:
    """And stay when that is made; those of another job go."""
    other = place._replace(whose=WHOSE._replace(uid=2002))
    agreement.tell_images(other, HeadImages(other.whose, {}))
    assert agreement.images(place) is None
    told = HeadImages(
        WHOSE, {"reg.io/a:1": HeadImage("sha256:ab"), "reg.io/b:1": HeadImage(code="c", fields={"a": "b"})}
    )
    assert agreement.tell_images(place, told) == told
    agreement.propose(place, PROPOSAL)
    assert agreement.tell_images(place, HeadImages(WHOSE, {})) == told == agreement.images(place)
    assert sorted(os.listdir(place.path)) == ["images.json", "proposal.json"]


def test_what_an_earlier_job_of_the_same_id_left_is_not_read(place: Place) -> None:
    """Its directory is removed when this job's head node proposes."""
    other = place._replace(whose=WHOSE._replace(uid=2002))
    agreement.propose(other, PROPOSAL._replace(whose=other.whose))
    agreement.vote(other, Vote(other.whose, "n2", {}))
    agreement.choose(other, Choice(other.whose, {}))
    assert (agreement.proposal(place), agreement.choice(place), agreement.votes(place, [])) == (None, None, [])
    assert agreement.propose(place, PROPOSAL) == PROPOSAL
    assert os.listdir(place.path) == ["proposal.json"]


@pytest.mark.parametrize("data", [b"", b"[]", b"{", b'{"whose": [1, "c", "n1"]}', b"[" * 5000])
def test_what_is_no_agreement_is_none(place: Place, data: bytes) -> None:
    """The head node writes it anew."""
    os.makedirs(place.path)
    for name in ("images.json", "proposal.json", "choice.json", "n2.vote"):
        Path(place.path, name).write_bytes(data)
    assert (agreement.proposal(place), agreement.choice(place), agreement.votes(place, [])) == (None, None, [])
    assert agreement.propose(place, PROPOSAL) == PROPOSAL


def test_an_agreement_is_withdrawn(place: Place) -> None:
    """As often as anybody likes; who comes late cannot vote any more."""
    agreement.propose(place, PROPOSAL)
    for _ in range(2):
        agreement.withdraw(place.store, place.name)
    assert not os.path.exists(place.path)
    with pytest.raises(StoreFailed):
        agreement.vote(place, Vote(WHOSE, "n2", {}))


def test_a_run_has_a_directory_of_its_own() -> None:
    """Beside the answer of its rendezvous, which ends in .json."""
    assert agreement.name_of("c/.", 7, 1) == "c__.7.1"
