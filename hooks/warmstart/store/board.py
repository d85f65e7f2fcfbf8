"""The board of a job's run in the store: what its nodes say to each other. Runs as the store's owner.

    <store>/runs/<cluster>.<jobid>.<restarts>/     0700, one run of a job (of a component, if it is heterogeneous)
        <topic>.<notice>                           0444, said once: whose it is, and a text

The name needs no query to Slurm (docs/architecture.md, rule 8): a prolog knows its cluster, its job's id and the number
of restarts, which are the same on all nodes of a run. A job id can come again (slurmctld lost its state, or ids
wrapped). Each notice therefore says user, cluster and nodes, and readers pass over those of another job.

A notice is written once and never replaced, so all nodes read the same, however often a prolog runs. Each topic begins
on one node and goes when that node takes it down; maintenance removes boards that nobody took down. Hot path of jobs
on several nodes.
"""

from __future__ import annotations

import os

from warmstart.host import files, wire
from warmstart.host.files import ensure_dir, opened_dir, read_small, unlink_if_there, write_all
from warmstart.lean import Iterator, NamedTuple, contextmanager, dumps, suppress
from warmstart.store.layout import store_errors

DIRECTORY = "runs"
LONGEST = 64 << 20  # bytes of a notice: it may have names of entries
_PLAIN = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-")


class Whose(NamedTuple):
    """The job that a notice is of."""

    uid: int
    cluster: str
    nodelist: str  # a Slurm hostlist


class Topic(NamedTuple):
    """What the nodes of one run speak about, and who speaks."""

    run: str  # as `run_of` names it
    name: str  # without a dot
    writer: str  # node and run id, part of the names of temp files
    whose: Whose

    @property
    def path(self) -> str:
        """What `take_down` takes: `<run>/<topic>`."""
        return f"{self.run}/{self.name}"


def run_of(cluster: str, job_id: int, restarts: int) -> str:
    """Return the name of a run's board; other characters than A-Z, a-z, 0-9, _ and - of `cluster` become _."""
    plain = "".join(character if character in _PLAIN else "_" for character in cluster)
    return f"{plain}.{job_id}.{restarts}"


def begin(store: str, topic: Topic, notice: str, text: str) -> str:
    """Say the first notice of a topic; return it, or what an earlier prolog of this run has said.

    Removes what another job of the same id has left of the topic. Raises `StoreFull` or `StoreFailed`.
    """
    with store_errors(f"writing {notice} of {topic.path}"):
        ensure_dir(f"{store}/{DIRECTORY}", 0o700)
        with opened_dir(f"{store}/{DIRECTORY}") as above:
            ensure_dir(topic.run, 0o700, above)
            with opened_dir(topic.run, above) as fd:
                for file in os.listdir(fd):
                    if file.startswith(f"{topic.name}.") and _text(fd, file, topic.whose) is None:
                        unlink_if_there(file, fd)
    return say(store, topic, notice, text)


def say(store: str, topic: Topic, notice: str, text: str) -> str:
    """Say something about a topic that was begun; return it, or what this run has said there before.

    Raises `StoreFull` or `StoreFailed`, the latter also where the topic was taken down with its board.
    """
    from warmstart.store.atomic import publish, temp_file

    file = f"{topic.name}.{notice}"
    with store_errors(f"writing {notice} of {topic.path}"), opened_dir(f"{store}/{DIRECTORY}/{topic.run}") as fd:
        with temp_file(fd, topic.writer) as (temp, out):
            write_all(out, dumps([*topic.whose, text]).encode())
            for _ in range(2):
                if publish(fd, temp, out, file):
                    return text
                if (said := _text(fd, file, topic.whose)) is not None:
                    return said
                unlink_if_there(file, fd)  # another job's, which an old listing had hidden from `begin`
        return text


def hear(store: str, topic: Topic, notices: list[str], known: list[str]) -> dict[str, str]:
    """Return the texts of these notices, as far as this job's nodes have said them.

    A notice that ends in a dot stands for all that begin so, but for those in `known`. Raises `StoreFailed`.

    Opens the directory again each time, because an NFS client only then revalidates a cached negative lookup (nfs(5),
    Directory entry caching).
    """
    found: dict[str, str] = {}
    with store_errors(f"reading {topic.path}"), _opened(store, topic.run) as fd:
        for notice in notices if fd >= 0 else ():
            for name in _beginning(fd, topic, notice) if notice.endswith(".") else [notice]:
                if name not in known and (text := _text(fd, f"{topic.name}.{name}", topic.whose)) is not None:
                    found[name] = text
    return found


def take_down(store: str, path: str) -> None:
    """Remove the notices of a topic, `<run>/<topic>`, if there are any; of all that begin so if it ends in a dash.

    Raises `StoreFailed`.
    """
    run, _, topic = path.partition("/")
    beginning = topic if topic.endswith("-") else f"{topic}."
    with store_errors(f"removing {path}"), _opened(store, run) as fd:
        for _ in range(2 if fd >= 0 else 0):  # the first listing of a network file system may be an old one
            for file in os.listdir(fd):
                if file.startswith(beginning):
                    unlink_if_there(file, fd)
            with suppress(OSError):  # other topics are still up, or it is gone
                os.rmdir(f"{store}/{DIRECTORY}/{run}")
                return


def keep(store: str, runs: list[str]) -> None:
    """Have maintenance leave the boards of running jobs, as if something had been said now. Raises `StoreFailed`."""
    with store_errors("keeping boards"), opened_dir(store) as root:
        for run in runs:
            with suppress(FileNotFoundError):
                os.utime(f"{DIRECTORY}/{run}", dir_fd=root, follow_symlinks=False)


def remove(run: str, above: int) -> bool:
    """Remove a run's board from the open directory of all; return whether it was there. Raises `OSError`."""
    with suppress(FileNotFoundError), opened_dir(run, above) as fd:
        for file in os.listdir(fd):
            unlink_if_there(file, fd)
        os.rmdir(run, dir_fd=above)
        return True
    return False


@contextmanager
def _opened(store: str, run: str) -> Iterator[int]:
    """Open a run's board for a `with`; yields -1 if there is none. A store that is missing is an error."""
    with opened_dir(store) as root:
        try:
            fd = os.open(f"{DIRECTORY}/{run}", files.DIRECTORY, dir_fd=root)
        except FileNotFoundError:
            yield -1
            return
    try:
        yield fd
    finally:
        os.close(fd)


def _beginning(fd: int, topic: Topic, notice: str) -> list[str]:
    prefix = f"{topic.name}.{notice}"
    return [file[len(topic.name) + 1 :] for file in os.listdir(fd) if file.startswith(prefix)]


def _text(fd: int, file: str, whose: Whose) -> str | None:
    """Return what a notice says; None if it is missing, of another job or of another form."""
    try:
        data = wire.parse(read_small(file, LONGEST, fd))
    except (FileNotFoundError, ValueError):
        return None
    if isinstance(data, list) and data[:-1] == [*whose] and isinstance(data[-1], str):
        return data[-1]
    return None
