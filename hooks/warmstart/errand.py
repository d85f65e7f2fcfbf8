"""Errands: what a node is to do off the clock of jobs. This is their form; `errands` does them. Runs as root.

    <node>/errands/<kind>/              root, 0700; in /run those about runs, which go with a boot
        OWNER,DUE,ATTEMPTS,KEY          0600, what is to be done: a NamedTuple of the kind's own, as JSON

The name says whose turn it is, when the next attempt may begin (in seconds since the epoch), and how many were begun.
So a hook counts without reading, and an attempt begins with a rename. Where two files have one key, the one of more
attempts counts.

A hook writes an errand and starts the program that does its kind. Whoever finds one that is due starts it, too: another
hook, maintenance. So each may die at any point; what is left still waits.
"""

from __future__ import annotations

import os
import time

from warmstart.host import files, wire
from warmstart.host.deadline import after
from warmstart.host.files import ensure_path, names_in, opened_dir, read_small, replace_file, unlink_if_there
from warmstart.lean import TYPE_CHECKING, Iterator, NamedTuple, contextmanager, dumps, suppress

if TYPE_CHECKING:
    from typing import TypeVar

    from warmstart.paths import NodePaths
    from warmstart.run.state import Run

    T = TypeVar("T")

KEPT_S = 86_400.0  # after the last attempt
_LONGEST = 10 << 20  # more than twice a run's, which is a JSON string in a file
_LONGEST_OWNER = 96  # of a scope's 200 characters


class Kind(NamedTuple):
    """What all errands of a kind have in common."""

    name: str
    most: int = 0  # of one owner, if `add` is to bound them
    backoff_s: float = 0.0  # after the first attempt, doubled after each further one; 0: none, and it waits for ever
    of_runs: bool = False  # whether it is about runs, which end with a boot
    unit: str = ""  # of systemd, which the program is started as where that runs; with the node's name for {}


class Asker(NamedTuple):
    """The job that asked first. Events about the errand bear its labels."""

    job_id: int
    uid: int
    user: str
    cluster: str

    @classmethod
    def of(cls, run: Run) -> Asker:
        """Return the job of a run."""
        return cls(run.job_id, run.uid, run.user, run.cluster)


class Errand(NamedTuple):
    """What the name of an errand tells."""

    owner: str  # a uid or a scope: whose turn it is
    due: int  # when the next attempt may begin; when it was asked for, as long as there was none
    attempts: int  # that were begun
    key: str

    @property
    def name(self) -> str:
        """The file's."""
        return f"{self.owner[:_LONGEST_OWNER]},{self.due},{self.attempts},{self.key}"

    def tried(self, kind: Kind) -> float:
        """Return when the last attempt was begun; when it was asked for if there was none."""
        return self.due - (kind.backoff_s * 2 ** (self.attempts - 1) if self.attempts else 0.0)

    def is_due(self, kind: Kind) -> bool:
        """Return whether an attempt may begin. A clock that was set back delays none for ever."""
        return not self.attempts or not self.tried(kind) <= time.time() < self.due


class Errands:
    """The errands of one kind on one node. Methods raise `OSError`."""

    def __init__(self, paths: NodePaths, kind: Kind) -> None:
        self.kind = kind
        self._top = paths.errands_of_runs if kind.of_runs else paths.errands
        self.directory = f"{self._top}/{kind.name}"
        self._paths = paths

    def all(self) -> list[Errand]:
        """Return all errands: those of fewer attempts first, and of these the oldest."""
        found = {
            errand.key: errand
            for errand in sorted(_parsed(names_in(self.directory)), key=lambda errand: errand.attempts)
        }
        return sorted(found.values(), key=lambda errand: (errand.attempts, errand.due, errand.key))

    def due(self) -> list[Errand]:
        """Return those of which an attempt may begin."""
        return [errand for errand in self.all() if errand.is_due(self.kind)]

    def find(self, key: str) -> Errand | None:
        """Return an errand by its key; None if there is none."""
        return next((errand for errand in self.all() if errand.key == key), None)

    def count(self, owner: str) -> int:
        """Return how many an owner has."""
        return sum(errand.owner == owner[:_LONGEST_OWNER] for errand in self.all())

    def read(self, errand: Errand, form: type[T]) -> T | None:
        """Return what is to be done; None if it is done, or the file is damaged."""
        with suppress(FileNotFoundError, ValueError):
            return wire.from_object(form, wire.parse(read_small(f"{self.directory}/{errand.name}", _LONGEST)))
        return None

    def add(self, owner: str, key: str, what: NamedTuple) -> bool:
        """Write a new errand; return False if its owner has too many."""
        if self.count(owner) >= self.kind.most:
            return False
        self.put(Errand(owner, int(time.time()), 0, key), what)
        return True

    def put(self, errand: Errand, what: NamedTuple) -> None:
        """Write an errand in place of what there is of this key."""
        for directory in (self._top, self.directory):
            ensure_path(directory, 0o700)
        data = dumps(what._asdict()).encode()
        with opened_dir(self.directory) as fd:
            replace_file(fd, errand.name, data, 0o600)
        self.drop(errand.key, but=errand.name)

    def drop(self, key: str, but: str = "") -> None:
        """Have an errand done no longer, except for one file; a process that is at it goes on."""
        with suppress(FileNotFoundError), opened_dir(self.directory) as fd:
            for errand in _parsed(os.listdir(fd)):
                if errand.key == key and errand.name != but:
                    unlink_if_there(errand.name, fd)

    def begin(self, errand: Errand) -> Errand | None:
        """Count an attempt, and say when the next one may begin; None if there is no such errand any more."""
        due = int(time.time() + self.kind.backoff_s * 2**errand.attempts)
        return self._rename(errand, errand._replace(attempts=errand.attempts + 1, due=due))

    def go_on(self, begun: Errand, before: Errand) -> None:
        """Undo `begin`: the attempt goes on in another turn."""
        self._rename(begun, before)

    def hasten(self, errand: Errand) -> None:
        """Let the next attempt begin at once; those that were begun count."""
        self._rename(errand, errand._replace(due=int(time.time())))

    def _rename(self, errand: Errand, new: Errand) -> Errand | None:
        with suppress(FileNotFoundError):
            os.rename(f"{self.directory}/{errand.name}", f"{self.directory}/{new.name}")
            return new
        return None

    def forget_old(self) -> None:
        """Drop those of which the last attempt is long ago."""
        now = time.time()
        for errand in self.all() if self.kind.backoff_s else ():
            if not -KEPT_S < now - errand.tried(self.kind) < KEPT_S:
                self.drop(errand.key)

    def start_due(self) -> None:
        """Start the program if an attempt is due, and no process of it is at work."""
        if self.due() and not is_at_work(self._paths, self.kind.name):
            start(self._paths, self.kind.name, self.kind.unit)


def _parsed(names: list[str]) -> Iterator[Errand]:
    for name in names:
        owner, _, rest = name.partition(",")
        due, _, rest = rest.partition(",")
        attempts, _, key = rest.partition(",")
        if key and due.isdecimal() and attempts.isdecimal() and not name.startswith("."):
            yield Errand(owner, int(due), int(attempts), key)


def start(paths: NodePaths, kind: str, unit: str = "") -> None:
    """Start the program that does a kind of errand on a node; `unit` as in `Kind`."""
    from warmstart.host import detached

    node = os.path.basename(paths.root)
    detached.start([paths.background_program, kind, node], unit=unit.format(node))


@contextmanager
def at_work(paths: NodePaths, kind: str, patience_s: float = 0.0) -> Iterator[bool]:
    """Hold the lock of who does a kind on a node for a `with`; yields False if another process has it."""
    with files.opened_lock(paths.locks, kind) as fd:
        yield files.wait_flock(fd, after(patience_s))


def is_at_work(paths: NodePaths, kind: str) -> bool:
    """Return whether a process does a kind on a node."""
    return files.is_locked(f"{paths.locks}/{kind}")


def waiting(paths: NodePaths) -> dict[str, list[Errand]]:
    """Return what waits of each kind that has a directory."""
    tops = (paths.errands, paths.errands_of_runs)
    return {kind: [*_parsed(names_in(f"{top}/{kind}"))] for top in tops for kind in names_in(top)}
