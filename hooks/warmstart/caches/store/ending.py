"""What the nodes of one run publish becomes visible together, in one generation of each namespace.

    <store>/ending/<uid>.<cluster>.<jobid>.<restarts>/     0700, one run of a job
        <node>.<hash>                                      rows of bundles that lie in place, handed in by that node
        <node>.ended                                       that node hands in nothing more

A node hands in a file for each profile of which it has something new, and puts one empty file when its harvest is over.
Whoever then sees as many ends as the run has nodes makes the union: it links one generation for each namespace, and
removes what it has read. So a node with nothing new costs one name, and a thousand nodes one generation. A run of which
a node never ends is united by maintenance, an hour after its first name.

The head node comes first where it can: the others wait a moment for its end, and leave out what it has handed in. Of an
entry on several nodes the head node's version counts, and what was removed is the head node's word alone.

Anybody may die or repeat anywhere. What a node has handed in is known to its next attempt; a node that hands in after
the union is united by itself. Two that unite at once, or one that repeats what another has done, find the rows listed,
and change nothing. Runs as the store's owner.
"""

from __future__ import annotations

import os

from warmstart.caches.store import bundles, generations, merge
from warmstart.caches.store.bundles import Draft
from warmstart.caches.store.layout import ENDING, Damaged, Namespace, make_namespace, read_owned, sealed, unsealed
from warmstart.caches.store.listing import HarvestTooLarge, Listing, Row
from warmstart.caches.store.merge import Change, Removal
from warmstart.errors import StoreError
from warmstart.host import wire
from warmstart.host.files import changed, ensure_dir, opened_dir, unlink_if_there
from warmstart.lean import Iterator, NamedTuple, contextmanager, dumps, suppress
from warmstart.store import atomic, barrier
from warmstart.store.layout import StoreFailed, is_component, store_errors

PATIENCE_S = 3600.0  # with nodes that do not end: lost, or their harvest waits
DROPPED_S = 2 * 86_400.0  # what cannot be listed
LARGEST = 32 << 20  # bytes of what one node hands in
_ENDED, _HASH = ".ended", 16  # characters of a hash in a name


class Run(NamedTuple):
    """One run of a job, as its nodes know it."""

    store: str
    name: str  # `name_of`

    @property
    def path(self) -> str:
        """The directory; raises `ValueError` if the name is not one of `name_of`."""
        if not is_component(self.name):
            raise ValueError(f"not a run's name: {self.name!r}")
        return os.path.join(self.store, ENDING, self.name)


class Handed(NamedTuple):
    """What one node hands in for one namespace."""

    scope: str
    profile: str
    namespace: str
    is_head: bool
    change: Change


class United(NamedTuple):
    """What a union did in one namespace."""

    where: Namespace
    number: int  # of the generation that was linked; 0: nothing of it was needed
    rows: list[Row]  # those of them that are listed now
    problem: str = ""  # why it was left out
    is_passing: bool = False  # it can be listed later


def name_of(uid: int, cluster: str, job_id: int, restarts: int) -> str:
    """Return the name of a run's directory, which begins with the user's uid."""
    return f"{uid}.{barrier.run_of(cluster, job_id, restarts)}"


def hand_in(  # noqa: PLR0917 - what of whom, and where to
    run: Run, writer: str, node: str, is_head: bool, where: Namespace, row: Row | None, draft: Draft
) -> None:
    """Hand in a bundle that lies in place, if there is one, and what its job removed; after an error, again."""
    text = sealed(dumps(Handed(*where[1:], is_head, draft.change(row))).encode())
    with store_errors("hand in a bundle", run.path), _made(run) as fd:
        atomic.put(fd, writer, f"{node}.{text[:_HASH].decode()}", text)


def ended(run: Run, writer: str, node: str, nodes: int) -> list[United] | None:
    """Say that a node hands in nothing more; after an error, again. The last of so many nodes makes the union.

    Returns what that did, None if nodes are missing.
    """
    with store_errors("end a run", run.path):
        with _made(run) as fd, suppress(FileExistsError):
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
            os.close(os.open(node + _ENDED, flags, 0o444, dir_fd=fd))
        with suppress(FileNotFoundError):  # anew: only then NFS lists what is there
            if sum(name.endswith(_ENDED) for name in os.listdir(run.path)) < nodes:
                return None
        return _unite(run, writer)


def has_ended(run: Run, node: str) -> bool:
    """Return whether a node has ended. So cheap that a thousand others may ask again and again."""
    with store_errors("look at a run's end", run.path):
        return os.path.lexists(f"{run.path}/{node}{_ENDED}")


def handed(run: Run, where: Namespace, nodes: list[str]) -> list[str]:
    """Return the entries of a namespace that these nodes have handed in."""
    found, files_of = list[str](), bundles.FilesOf(where)
    with store_errors("look at a run's end", run.path), suppress(FileNotFoundError), opened_dir(run.path) as fd:
        for name in os.listdir(fd):
            one = _read(fd, name) if name.rpartition(".")[0] in nodes else None
            if one and one[:3] == where[1:] and one.change.row:
                found += files_of(one.change.row.sha256) or ()
    return found


def due(store: str, now: float) -> list[str]:
    """Return the names of runs to unite although nodes are missing."""
    names = []
    with store_errors("list ends of runs"), suppress(FileNotFoundError), opened_dir(f"{store}/{ENDING}") as above:
        for name in filter(is_component, sorted(os.listdir(above))):
            with suppress(OSError), opened_dir(name, above) as fd:
                if _since(fd) < now - PATIENCE_S:
                    names.append(name)
    return names


def unite(store: str, writer: str, name: str, now: float) -> list[United]:
    """Unite what has come of a run, whichever nodes are missing. What cannot be listed is dropped after two days."""
    run = Run(store, name)
    with store_errors("unite a run", run.path):
        return _unite(run, writer, now - DROPPED_S)


def _unite(run: Run, writer: str, dropped: float = 0.0) -> list[United]:
    """List what the nodes have handed in, and remove that. Raises `StoreError` if some of it can be listed later.

    That is dropped if the first name came before `dropped`.
    """
    united: list[United] = []
    with suppress(FileNotFoundError), opened_dir(run.path) as fd:
        is_old, names = _since(fd) < dropped, os.listdir(fd)
        groups: dict[Namespace, list[Handed]] = {}
        for one in sorted(filter(None, (_read(fd, name) for name in sorted(names))), key=lambda one: one.is_head):
            groups.setdefault(Namespace(run.store, *one[:3]), []).append(one)  # the head's last, so it comes to the top
        united = [_united(where, writer, group) for where, group in groups.items()]
        failed = [one.problem for one in united if one.is_passing]
        if failed and not is_old:
            raise StoreFailed(what=f"unite the run {run.name}", problem=failed[0])
        for name in names:
            if is_old or not name.startswith("."):
                unlink_if_there(name, fd)
    with suppress(OSError):  # a node has handed in meanwhile, or another process was first
        os.rmdir(run.path)
    return united


def _united(where: Namespace, writer: str, group: list[Handed]) -> United:
    """List what nodes have handed in for one namespace."""
    files_of = bundles.FilesOf(where)
    ours = {one.change.row.sha256 for one in group if one.change.row}

    def merged(old: Listing) -> Listing | None:
        new: Listing | None = None
        for one in group:
            change = one.change if one.is_head else one.change._replace(removal=Removal())
            new = merge.added(new or old, change, files_of) or new
        return new

    try:
        with store_errors("make a namespace", where.path):
            os.close(make_namespace(where))
        listing = generations.change(where, writer, merged)
    except HarvestTooLarge as error:
        return United(where, 0, [], str(error))
    except StoreError as error:
        return United(where, 0, [], str(error), is_passing=True)
    if listing is None:
        return United(where, 0, [])
    return United(where, listing.number, [row for row in listing.rows if row.sha256 in ours])


@contextmanager
def _made(run: Run) -> Iterator[int]:
    """Open a run's directory, which is made if it is missing; never the store, which is then not mounted."""
    if not os.path.isdir(run.path):
        for path in (os.path.dirname(run.path), run.path):
            ensure_dir(path, 0o700)
    with opened_dir(run.path) as fd:
        yield fd


def _read(fd: int, name: str) -> Handed | None:
    """Read what a node has handed in; None if a name is another one, or its file gone or damaged."""
    if name.startswith(".") or name.endswith(_ENDED):
        return None
    with suppress(FileNotFoundError, Damaged, ValueError):
        return _decoded(unsealed(read_owned(name, LARGEST, fd)))
    return None


def _decoded(text: bytes) -> Handed:
    one: Handed = wire.decode(Handed, wire.parse(text))
    _ = Namespace("", *one[:3]).path
    return one


def _since(fd: int) -> float:
    """Return when the first name came."""
    names = os.listdir(fd)
    return min(changed(name, fd) for name in names or ["."])
