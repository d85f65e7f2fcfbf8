"""The agreement of a job's nodes on what they show the job: small files in the store.

    <store>/rendezvous/<cluster>.<jobid>.<restarts>/     0700, one run of a job (of a component, if it is heterogeneous)
        images.json             which images the head node has, or why it has none
        proposal.json           the head node's bundles for each profile
        <node>.vote             another node's word: what it cannot show
        choice.json             the head node's last word: which profiles are cold

Each file is written once and never replaced, so all nodes read the same, however often a prolog runs. A job id can come
again (slurmctld lost its state, or ids wrapped). Readers therefore compare user, cluster and nodes, as those of a
rendezvous do (rendezvous.py), and a head node that finds nothing of this job's in the directory removes it.

Runs as the store's owner. Hot path, of jobs on several nodes.
"""

from __future__ import annotations

import os

from warmstart.host import wire
from warmstart.host.files import ensure_dir, opened_dir, read_small, unlink_if_there, write_all
from warmstart.lean import TYPE_CHECKING, NamedTuple, dumps, suppress
from warmstart.store import rendezvous
from warmstart.store.layout import store_errors
from warmstart.store.rendezvous import DIRECTORY

if TYPE_CHECKING:
    from typing import TypeVar

    T = TypeVar("T", "HeadImages", "Proposal", "Vote", "Choice")

LONGEST = 32 << 20  # bytes of a proposal: names of entries, where not all of a bundle are taken
_IMAGES, _PROPOSAL, _CHOICE, _VOTE = "images.json", "proposal.json", "choice.json", ".vote"


class Whose(NamedTuple):
    """The job of an agreement."""

    uid: int
    cluster: str
    nodelist: str  # a Slurm hostlist


class Place(NamedTuple):
    """Where an agreement is, and whose it is."""

    store: str
    name: str  # as of the rendezvous (rendezvous.py), without the ending
    writer: str  # node and run id, part of the names of temp files
    whose: Whose

    @property
    def path(self) -> str:
        """The directory."""
        return os.path.join(self.store, DIRECTORY, self.name)


class HeadImage(NamedTuple):
    """What the head node has for one image: a digest, or an error by its code, fields and message."""

    digest: str = ""  # "sha256:HEX" or "adopted:HEX"; "" if it has none
    waited: bool = False  # for an import
    stale: str = ""  # why that is what the tag meant last
    code: str = ""
    fields: dict[str, str] = {}  # noqa: RUF012 - never mutated
    text: str = ""


class HeadImages(NamedTuple):
    """What the head node has for the job's images, by canonical reference."""

    whose: Whose
    images: dict[str, HeadImage]


class ProposedBundle(NamedTuple):
    """A bundle that the head node proposes: of an `Offer` what other releases know, too."""

    scope: str
    bundle: str
    sha256: str
    size: int
    entries: list[str]  # empty if all of the bundle's are taken
    whole: bool


class ProposedProfile(NamedTuple):
    """What the head node is to show of one profile."""

    namespace: str
    facts: dict[str, str]  # from which the namespace was computed
    offers: list[
        ProposedBundle
    ]  # in the order of an overlay's layers; `entries` are empty where the bundle is taken as a whole


class Proposal(NamedTuple):
    """What the head node proposes."""

    whose: Whose
    profiles: dict[str, ProposedProfile]


class Vote(NamedTuple):
    """What one node cannot show."""

    whose: Whose
    node: str
    cold: dict[str, str]  # profile → why; a profile that is not here can be shown


class Cold(NamedTuple):
    """Why a profile is cold on all nodes."""

    reason: str
    nodes: list[str]  # for which


class Choice(NamedTuple):
    """What all nodes show: the proposed profiles but those in `cold`."""

    whose: Whose
    cold: dict[str, Cold]


def name_of(cluster: str, job_id: int, restarts: int) -> str:
    """Return the name of a run's directory."""
    return rendezvous.name_of(cluster, job_id, restarts).removesuffix(".json")


def tell_images(place: Place, made: HeadImages) -> HeadImages:
    """Write which images the head node has; return it, or what an earlier prolog of this run has written."""
    with store_errors(f"writing the images of {place.name}"):
        _begin(place)
        return _write_once(place, _IMAGES, made)


def images(place: Place) -> HeadImages | None:
    """Return which images the head node has; None while that is not known."""
    with store_errors(f"reading the images of {place.name}"):
        return _read(place, _IMAGES, HeadImages)


def propose(place: Place, made: Proposal) -> Proposal:
    """Write the proposal; return it, or the one that an earlier prolog of this run has written."""
    with store_errors(f"writing the proposal {place.name}"):
        _begin(place)
        return _write_once(place, _PROPOSAL, made)


def proposal(place: Place) -> Proposal | None:
    """Return the head node's proposal; None while there is none for this job."""
    with store_errors(f"reading the proposal {place.name}"):
        return _read(place, _PROPOSAL, Proposal)


def vote(place: Place, given: Vote) -> None:
    """Write a node's vote; one that it has given before stays."""
    with store_errors(f"writing the vote {place.name}"):
        _write_once(place, given.node + _VOTE, given)


def votes(place: Place, known: list[str]) -> list[Vote]:
    """Return the votes of nodes that are not among `known`; a vote that cannot be decoded is none."""
    with store_errors(f"reading the votes {place.name}"):
        with opened_dir(place.path) as fd:
            files = [file for file in os.listdir(fd) if file.endswith(_VOTE) and file.removesuffix(_VOTE) not in known]
        given = (_read(place, file, Vote) for file in files)
        return [one for one in given if one is not None]


def choose(place: Place, made: Choice) -> Choice:
    """Write the choice; return it, or the one that an earlier prolog of this run has written."""
    with store_errors(f"writing the choice {place.name}"):
        return _write_once(place, _CHOICE, made)


def choice(place: Place) -> Choice | None:
    """Return the head node's choice; None while there is none for this job."""
    with store_errors(f"reading the choice {place.name}"):
        return _read(place, _CHOICE, Choice)


def withdraw(store: str, name: str) -> None:
    """Remove an agreement, if there is one; raises `StoreFailed`."""
    with store_errors(f"removing the agreement {name}"), suppress(FileNotFoundError):  # noqa: SIM117
        with opened_dir(os.path.join(store, DIRECTORY)) as parent:
            remove(name, parent)


def _begin(place: Place) -> None:
    """Make the run's directory on the head node, in place of another job's."""
    above = os.path.join(place.store, DIRECTORY)
    ensure_dir(above, 0o700)
    with opened_dir(above) as parent:
        if _read(place, _IMAGES, HeadImages) is None and _read(place, _PROPOSAL, Proposal) is None:
            remove(place.name, parent)
        ensure_dir(place.name, 0o700, parent)


def _write_once(place: Place, file: str, value: T) -> T:
    """Write a file, unless it is there; return what it holds."""
    from warmstart.store.atomic import publish, temp_file

    with opened_dir(place.path) as fd, temp_file(fd, place.writer) as (temp, out):
        write_all(out, dumps(value._asdict()).encode())
        if publish(fd, temp, out, file):
            return value
    return _read(place, file, type(value)) or value


def _read(place: Place, file: str, kind: type[T]) -> T | None:
    """Return what a file holds; None if it is missing, of another job or of another form.

    Opens the directory again each time, because an NFS client only then revalidates a cached negative lookup (nfs(5),
    Directory entry caching).
    """
    try:
        with opened_dir(place.path) as fd:
            found = wire.from_object(kind, wire.parse(read_small(file, LONGEST, fd)))
    except (FileNotFoundError, ValueError):
        return None
    return found if found.whose == place.whose else None


def remove(name: str, parent: int) -> bool:
    """Remove an agreement from the open directory of all; return whether it was there. Raises `OSError`."""
    with suppress(FileNotFoundError), opened_dir(name, parent) as fd:
        for file in os.listdir(fd):
            unlink_if_there(file, fd)
        os.rmdir(name, dir_fd=parent)
        return True
    return False
