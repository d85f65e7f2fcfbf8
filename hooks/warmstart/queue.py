"""The queue: what a node is to do off the clock of jobs. `entry.background` makes the attempts. Runs as root.

    /run/warmstart/<node>/queue/<kind>/     root, 0700
        OWNER,DUE,ATTEMPTS,KEY              0600, an item: what is to be done, a NamedTuple of the kind's own, as JSON

It ends with a boot, as the jobs do that asked: the next job that needs an image or a copy asks again.

The name says whose turn it is, when the next attempt may begin (in seconds since the epoch), and how many were begun.
So a hook counts without reading, and an attempt begins with a rename. Where two files have one key, the one of more
attempts counts.

A hook writes an item and starts the program that does its kind. Whoever finds one that is due starts it, too: another
hook, maintenance. So each may die at any point; what is left still waits.
"""

from __future__ import annotations

import os
import time

from warmstart.host import files, wire
from warmstart.host.deadline import after
from warmstart.host.files import ensure_path, names_in, opened_dir, read_small, replace_file, unlink_if_there
from warmstart.lean import TYPE_CHECKING, Iterator, Literal, NamedTuple, contextmanager, dumps, suppress

if TYPE_CHECKING:
    from typing import TypeVar

    from warmstart.paths import NodePaths
    from warmstart.run.state import Run

    T = TypeVar("T")

Outcome = Literal["done", "later", "more"]
DONE: Outcome = "done"  # nothing of it is left
LATER: Outcome = "later"  # it is tried again, after a pause that doubles
MORE: Outcome = "more"  # the attempt goes on when its owner's turn comes again
KEPT_S = 86_400.0  # after the last attempt
_LONGEST = 10 << 20  # more than twice a run's, which is a JSON string in a file
_LONGEST_OWNER = 96  # of a scope's 200 characters


class Kind(NamedTuple):
    """What all items of a kind have in common."""

    name: str
    most: int = 0  # of one owner; 0: who puts them there bounds them, and how long they wait
    backoff_s: float = 60.0  # after the first attempt, doubled after each further one up to a day
    parallel: int = 1  # attempts at a time on a node; if there may be several, one more for another owner
    is_idle: bool = True  # whether attempts have idle priority
    hook: str = "background"  # of the events of attempts
    while_off: bool = False  # whether attempts are made while warmstart is off
    unit: str = ""  # of systemd, which the program is started as where that runs; with the node's name for {}

    def pause_s(self, attempts: int) -> float:
        """Return how long after the last of so many attempts the next one may begin."""
        return min(self.backoff_s * 2 ** (attempts - 1), KEPT_S) if attempts else 0.0


class Asker(NamedTuple):
    """The job that asked first. Events about the item bear its labels."""

    job_id: int
    uid: int
    user: str
    cluster: str

    @classmethod
    def of(cls, run: Run) -> Asker:
        """Return the job of a run."""
        return cls(run.job_id, run.uid, run.user, run.cluster)


class Item(NamedTuple):
    """What the name of an item tells."""

    owner: str  # a uid or a scope: whose turn it is
    due: int  # when the next attempt may begin, in seconds since the epoch
    attempts: int  # that were begun
    key: str

    @property
    def name(self) -> str:
        """The file's."""
        return f"{self.owner[:_LONGEST_OWNER]},{self.due},{self.attempts},{self.key}"

    def tried(self, kind: Kind) -> float:
        """Return when the last attempt was begun; when it was asked for if there was none."""
        return self.due - kind.pause_s(self.attempts)

    def is_due(self) -> bool:
        """Return whether an attempt may begin. A clock that was set back delays none for more than a day."""
        return not 0 < self.due - time.time() <= KEPT_S


class Queue:
    """The items of one kind on one node. Methods raise `OSError`."""

    def __init__(self, paths: NodePaths, kind: Kind) -> None:
        self.kind = kind
        self.directory = f"{paths.queue}/{kind.name}"
        self._paths = paths

    def all(self) -> list[Item]:
        """Return all items: those of fewer attempts first, and of these the oldest."""
        found = {item.key: item for item in sorted(_parsed(names_in(self.directory)), key=lambda item: item.attempts)}
        return sorted(found.values(), key=lambda item: (item.attempts, item.due, item.key))

    def due(self) -> list[Item]:
        """Return those of which an attempt may begin."""
        return [item for item in self.all() if item.is_due()]

    def find(self, key: str) -> Item | None:
        """Return an item by its key; None if there is none."""
        return next((item for item in self.all() if item.key == key), None)

    def count(self, owner: str) -> int:
        """Return how many an owner has."""
        return sum(item.owner == owner[:_LONGEST_OWNER] for item in self.all())

    def read(self, item: Item, form: type[T]) -> T | None:
        """Return what is to be done; None if it is done, or the file is damaged."""
        with suppress(FileNotFoundError, ValueError):
            return wire.from_object(form, wire.parse(read_small(f"{self.directory}/{item.name}", _LONGEST)))
        return None

    def add(self, owner: str, key: str, what: NamedTuple) -> bool:
        """Write a new item; return False if its owner has too many."""
        if self.count(owner) >= self.kind.most:
            return False
        self.put(Item(owner, int(time.time()), 0, key), what)
        return True

    def put(self, item: Item, what: NamedTuple) -> None:
        """Write an item in place of what there is of this key."""
        if not os.path.isdir(self.directory):
            for directory in (self._paths.queue, self.directory):
                ensure_path(directory, 0o700)
        with opened_dir(self.directory) as fd:
            replace_file(fd, item.name, dumps(what._asdict()).encode(), 0o600, durable=False)
            _drop(fd, item.key, item.name)

    def drop(self, key: str) -> None:
        """Have an item done no longer; a process that is at it goes on."""
        with suppress(FileNotFoundError), opened_dir(self.directory) as fd:
            _drop(fd, key)

    def begin(self, item: Item) -> Item | None:
        """Count an attempt, and say when the next one may begin; None if there is no such item any more."""
        attempts = item.attempts + 1
        due = int(time.time() + self.kind.pause_s(attempts))
        return self._rename(item, item._replace(attempts=attempts, due=due))

    def go_on(self, begun: Item) -> None:
        """Do not count an attempt: it goes on in another turn."""
        self._rename(begun, begun._replace(attempts=begun.attempts - 1, due=int(time.time())))

    def hasten(self, item: Item) -> None:
        """Let the next attempt begin at once; those that were begun count."""
        self._rename(item, item._replace(due=int(time.time())))

    def _rename(self, item: Item, new: Item) -> Item | None:
        with suppress(FileNotFoundError):
            os.rename(f"{self.directory}/{item.name}", f"{self.directory}/{new.name}")
            return new
        return None

    def forget_old(self) -> None:
        """Drop those of which the last attempt is long ago."""
        now = time.time()
        for item in self.all() if self.kind.most else ():
            if not -KEPT_S < now - item.tried(self.kind) < KEPT_S:
                self.drop(item.key)

    def start_due(self) -> None:
        """Start the program if an attempt is due."""
        if self.due():
            self.start()

    def start(self) -> None:
        """Start the program that makes the attempts, unless a process of it is at work."""
        if is_at_work(self._paths, self.kind.name):
            return
        from warmstart.host import detached

        node = self._paths.node
        detached.start([self._paths.background_program, self.kind.name, node], unit=self.kind.unit.format(node))


def _drop(fd: int, key: str, but: str = "") -> None:
    """Remove the files of a key from a directory, except for one."""
    for item in _parsed(os.listdir(fd)):
        if item.key == key and item.name != but:
            unlink_if_there(item.name, fd)


def _parsed(names: list[str]) -> Iterator[Item]:
    for name in names:
        owner, _, rest = name.partition(",")
        due, _, rest = rest.partition(",")
        attempts, _, key = rest.partition(",")
        if key and due.isdecimal() and attempts.isdecimal() and not name.startswith("."):
            yield Item(owner, int(due), int(attempts), key)


@contextmanager
def at_work(paths: NodePaths, kind: str, patience_s: float = 0.0) -> Iterator[bool]:
    """Hold the lock of who does a kind on a node for a `with`; yields False if another process has it."""
    with files.opened_lock(paths.locks, kind) as fd:
        yield files.wait_flock(fd, after(patience_s))


def is_at_work(paths: NodePaths, kind: str) -> bool:
    """Return whether a process does a kind on a node."""
    return files.is_locked(f"{paths.locks}/{kind}")


def waiting(paths: NodePaths) -> dict[str, list[Item]]:
    """Return what waits of each kind that has a directory."""
    return {kind: [*_parsed(names_in(f"{paths.queue}/{kind}"))] for kind in names_in(paths.queue)}
