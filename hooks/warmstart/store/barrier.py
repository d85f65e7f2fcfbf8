"""The barrier of a job's run: what its nodes say to each other through the store, and how one waits for the others.

    <store>/runs/<cluster>.<jobid>.<restarts>/     0700, one run of a job (of a component, if it is heterogeneous)
        <topic>.<key>.<name>                       0444, said once; `key` is a hash of user, cluster and nodes

The run's name needs no query to Slurm (docs/architecture.md, rule 8): a prolog knows its cluster, its job's id and the
number of restarts, which are the same on all nodes of a run. A job id can come again (slurmctld lost its state, or ids
wrapped). So the names of files have the key, too, and nobody sees what another job has left.

A message is written once and never replaced, so all nodes read the same, however often a prolog runs. A mark says all
by its name: who counts the marks of a thousand nodes reads one directory. A topic begins on one node and goes when that
node takes it down; maintenance removes the directories that nobody took down.

The functions run as the store's owner; `Barrier` is root's side of them. Hot path of jobs on several nodes.
"""

from __future__ import annotations

import os
import time

from warmstart.errors import StoreError
from warmstart.host import wire
from warmstart.host.deadline import Deadline, after, looks
from warmstart.host.files import ensure_dir, opened_dir, read_small, unlink_if_there
from warmstart.lean import TYPE_CHECKING, Callable, Iterator, NamedTuple, contextmanager, dumps, sha256, suppress
from warmstart.slurm.nodes import first
from warmstart.store.layout import store_errors

if TYPE_CHECKING:
    from typing import Protocol, TypeVar

    from warmstart.store.client import StoreClient

    class Message(Protocol):
        """A NamedTuple that can be said."""

        def _asdict(self) -> dict[str, object]: ...

    M = TypeVar("M", bound=Message)
    T = TypeVar("T")

DIRECTORY = "runs"
LONGEST = 1 << 20  # bytes of a message
LOOK_S = 5.0  # for one question to the store
_PLAIN = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-")


class HeadSilent(StoreError):
    """A node did not learn in time what the head node found, proposed or chose."""

    code = "head-silent"
    template = "the head node {head} has {what} within {seconds} s"
    hint = "check whether its prolog failed or started late (PrologFlags=Alloc), and whether the nodes share the store"


class Topic(NamedTuple):
    """What the nodes of one run speak about, and who speaks."""

    run: str  # as `run_of` names it
    beginning: str  # of the names of its files, with the last dot
    writer: str  # node and run id, part of the names of temp files

    @property
    def path(self) -> str:
        """What `take_down` takes, `<run>/<topic>`."""
        return f"{self.run}/{self.beginning.partition('.')[0]}"


def run_of(cluster: str, job_id: int, restarts: int) -> str:
    """Return the name of a run's directory; other characters than A-Z, a-z, 0-9, _ and - of `cluster` become _."""
    plain = "".join(character if character in _PLAIN else "_" for character in cluster)
    return f"{plain}.{job_id}.{restarts}"


def say(store: str, topic: Topic, name: str, text: str, begins: bool) -> str:
    """Say a message; return it, or what was said under that name before.

    Only who `begins` a topic makes the run's directory. Raises `StoreFull` or `StoreFailed`, the latter also where the
    topic was taken down with its directory.
    """
    from warmstart.store import atomic

    directory, file = f"{store}/{DIRECTORY}/{topic.run}", topic.beginning + name
    with store_errors(f"writing {name} of {topic.path}"):
        if begins:
            ensure_dir(f"{store}/{DIRECTORY}", 0o700)
            ensure_dir(directory, 0o700)
        with opened_dir(directory) as fd:
            is_first = atomic.put(fd, topic.writer, file, text.encode())
            return text if is_first else read_small(file, LONGEST, fd).decode()


def mark(store: str, topic: Topic, name: str) -> None:
    """Say what a name alone says, of a topic that was begun; errors as of `say`."""
    path = f"{store}/{DIRECTORY}/{topic.run}/{topic.beginning}{name}"
    with store_errors(f"writing {name} of {topic.path}"):
        os.close(os.open(path, os.O_RDONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o444))


def hear(store: str, topic: Topic, name: str) -> str | None:
    """Return a message; None while it was not said. Raises `StoreFailed`.

    Opens the directory again each time, because an NFS client only then revalidates a cached negative lookup (nfs(5),
    Directory entry caching).
    """
    with (
        store_errors(f"reading {topic.path}"),
        opened_dir(store) as root,
        suppress(FileNotFoundError, ValueError),
        opened_dir(f"{DIRECTORY}/{topic.run}", root) as fd,
    ):
        return read_small(topic.beginning + name, LONGEST, fd).decode()
    return None


def marks(store: str, topic: Topic, prefix: str) -> list[str]:
    """Return the names of a topic that begin with `prefix`, without it. Raises `StoreFailed`."""
    beginning = topic.beginning + prefix
    with (
        store_errors(f"reading {topic.path}"),
        opened_dir(store) as root,
        suppress(FileNotFoundError),
        opened_dir(f"{DIRECTORY}/{topic.run}", root) as fd,
    ):
        return [file[len(beginning) :] for file in os.listdir(fd) if file.startswith(beginning)]
    return []


def take_down(store: str, path: str) -> None:
    """Remove what was said about a topic, `<run>/<topic>`, if anything was; all that begins so if it ends in a dash.

    Raises `StoreFailed`.
    """
    run, _, topic = path.partition("/")
    beginning = topic if topic.endswith("-") else f"{topic}."
    with (
        store_errors(f"removing {path}"),
        opened_dir(store) as root,
        suppress(FileNotFoundError),
        opened_dir(f"{DIRECTORY}/{run}", root) as fd,
    ):
        for _ in range(2):  # the first listing of a network file system may be an old one
            for file in os.listdir(fd):
                if file.startswith(beginning):
                    unlink_if_there(file, fd)
            with suppress(OSError):  # other topics are still there, or it is gone
                os.rmdir(f"{DIRECTORY}/{run}", dir_fd=root)
                return


def keep(store: str, runs: list[str]) -> None:
    """Have maintenance leave what running jobs say, as if something had been said now. Raises `StoreFailed`."""
    with store_errors("keeping what runs say"), opened_dir(store) as root:
        for run in runs:
            with suppress(FileNotFoundError):
                os.utime(f"{DIRECTORY}/{run}", dir_fd=root, follow_symlinks=False)


def remove(run: str, above: int) -> bool:
    """Remove a run's directory from the open directory of all; return whether it was there. Raises `OSError`."""
    with suppress(FileNotFoundError), opened_dir(run, above) as fd:
        for file in os.listdir(fd):
            unlink_if_there(file, fd)
        os.rmdir(run, dir_fd=above)
        return True
    return False


def _nobody(_: bool) -> None:
    """Do nothing."""


class Barrier(NamedTuple):
    """Where the nodes of one run of a job wait for each other, and about what. Each call raises `StoreError`."""

    run: str  # `run_of`
    topic: str  # without a dot
    nodelist: str  # of those who wait: the job's, the component's, or a step's
    key: str = ""  # tells a job from another one of that id
    waits: Callable[[bool], object] = _nobody  # is told when this node begins to wait for others, and when it goes on

    @classmethod
    def of(cls, user: tuple[str, int], job_id: int, restarts: int, topic: str, nodelist: str) -> Barrier:
        """Return the barrier of a run; `user` is its cluster and uid."""
        key = sha256(f"{user} {nodelist}".encode()).hexdigest()[:16]
        return cls(run_of(user[0], job_id, restarts), topic, nodelist, key)

    @property
    def path(self) -> str:
        """What the node that began the topic takes down at the run's end."""
        return f"{self.run}/{self.topic}"

    def topic_of(self, store: StoreClient) -> Topic:
        """Return what the functions of the store's owner take."""
        return Topic(self.run, f"{self.topic}.{self.key}.", store.writer)

    def begin(self, store: StoreClient, name: str, value: M, deadline: Deadline) -> M:
        """Say the first message of the topic; return it, or what an earlier prolog of this run has said."""
        return self.say(store, name, value, deadline, begins=True)

    def say(self, store: StoreClient, name: str, value: M, deadline: Deadline, *, begins: bool = False) -> M:
        """Say a message; return it, or what was said under that name before."""
        said = store.run(deadline, say, self.topic_of(store), name, dumps(value._asdict()), begins)
        return _read(type(value), said) or value

    def hear(self, store: StoreClient, name: str, kind: type[M], deadline: Deadline) -> M | None:
        """Return a message; None while it was not said, or where it has another release's form."""
        text = store.run(deadline, hear, self.topic_of(store), name)
        return None if text is None else _read(kind, text)

    def mark(self, store: StoreClient, name: str, deadline: Deadline) -> None:
        """Say what a name alone says."""
        store.run(deadline, mark, self.topic_of(store), name)

    def marks(self, store: StoreClient, prefix: str, deadline: Deadline) -> list[str]:
        """Return the marks whose names begin with `prefix`, without it."""
        return store.run(deadline, marks, self.topic_of(store), prefix)

    def await_head(self, store: StoreClient, look: Callable[[Deadline], T | None], until: Deadline, what: str) -> T:
        """Look until there is something; return it. Raises `HeadSilent`: the head node has `what`.

        The client of the store keeps whether the head node was silent last, for what need not wait for it again.
        """
        began = time.monotonic()
        with self.waiting():
            for _ in looks(until):
                if (seen := look(after(LOOK_S))) is not None:
                    store.head_silent = False
                    return seen
        store.head_silent = True
        head = first(self.nodelist) or "of the leading component"
        raise HeadSilent(head=head, what=what, seconds=round(time.monotonic() - began))

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Tell for a `with` that this node waits for others (`waits`)."""
        self.waits(True)
        try:
            yield
        finally:
            self.waits(False)


def _read(kind: type[M], text: str) -> M | None:
    with suppress(ValueError):
        return wire.from_object(kind, wire.parse(text.encode()))
    return None
