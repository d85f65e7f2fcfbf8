"""What the nodes of one run publish becomes visible together, in one generation of each namespace.

    <store>/ending/<uid>.<cluster>.<jobid>.<restarts>/     0700, one run of a job
        <node>.none                                        that node has ended, with nothing new
        <node>.<hash>                                      … with rows of bundles that lie in place already

Each node's ending puts one name here, when its harvest is over. Whoever then sees the names of as many nodes as the run
has makes the union: it links one generation for each namespace, and removes what it has read. So a node with nothing
new costs one name, and a thousand nodes one generation. A run of which a node never ends is united by maintenance, an
hour after its first name.

The head node's ending comes first where it can: the others wait for it a moment, and leave out what it has handed in.
Of an entry on several nodes the head node's version counts, and what was removed is the head node's word alone.

Anybody may die or repeat anywhere. A node that ends again puts the same name, or one more, which is united by itself.
Two that unite at once, or one that repeats what another has done, find the rows listed, and change nothing. Runs as the
store's owner.
"""

from __future__ import annotations

import os

from warmstart.caches.store import bundles, generations
from warmstart.caches.store.layout import ENDING, Damaged, Namespace, make_namespace, read_owned, sealed, unsealed
from warmstart.caches.store.listing import HarvestTooLarge, Listing, Row
from warmstart.caches.store.merge import NOTHING, Addition, Removal
from warmstart.errors import StoreError
from warmstart.host import wire
from warmstart.host.files import changed, closing, ensure_dir, opened_dir, unlink_if_there, write_all
from warmstart.lean import Iterator, NamedTuple, contextmanager, dumps, suppress
from warmstart.store import barrier
from warmstart.store.layout import StoreFailed, is_component, store_errors

PATIENCE_S = 3600.0  # with nodes that do not end: lost, or their harvest waits
DROPPED_S = 2 * 86_400.0  # what cannot be listed
LARGEST = 32 << 20  # bytes of what one node hands in
_NONE, _HASH = "none", 16  # characters of a hash in a name


class Run(NamedTuple):
    """One run of a job, as its nodes know it."""

    store: str
    name: str  # `name_of`
    nodes: int
    head: str

    @property
    def path(self) -> str:
        """The directory; raises `ValueError` if the name is not one of `name_of`."""
        if not is_component(self.name):
            raise ValueError(f"not a run's name: {self.name!r}")
        return os.path.join(self.store, ENDING, self.name)


class Handed(NamedTuple):
    """What one node hands in for one namespace: a bundle that lies in place, and what its job removed."""

    scope: str
    profile: str
    namespace: str
    row: Row | None
    names: list[str] = []  # noqa: RUF012 - never mutated, like the rest; the bundle's entries
    changed: list[str] = []  # noqa: RUF012 - as in `Addition`
    removal: Removal = NOTHING


class _Ending(NamedTuple):
    """What a node's file says."""

    is_head: bool = False
    handed: list[Handed] = []  # noqa: RUF012


class United(NamedTuple):
    """What a union did in one namespace."""

    where: Namespace
    number: int  # of the generation that was linked; 0: nothing of it was needed
    rows: list[Row]  # those of them that are listed now
    problem: str = ""  # why it was left out
    is_passing: bool = False  # it can be listed later


class Ended(NamedTuple):
    """How far a run has come."""

    missing: int  # nodes that have not ended
    united: list[United]


def name_of(uid: int, cluster: str, job_id: int, restarts: int) -> str:
    """Return the name of a run's directory, which begins with the user's uid."""
    return f"{uid}.{barrier.run_of(cluster, job_id, restarts)}"


def ended(run: Run, writer: str, node: str, handed: list[Handed]) -> Ended:
    """Say that a node's harvest is over, with what it hands in; if it is the last node, make the union.

    After an error it may be called again.
    """
    with store_errors("end a run", run.path):
        with _made(run) as fd:
            text = sealed(dumps(_Ending(node == run.head, handed)).encode())
            _put(fd, writer, f"{node}.{text[:_HASH].decode() if handed else _NONE}", text if handed else b"")
        with suppress(FileNotFoundError), opened_dir(run.path) as fd:  # anew: only then NFS lists what is there
            nodes = {_node(name) for name in os.listdir(fd) if _is_ending(name)}
            if len(nodes) < run.nodes:
                return Ended(run.nodes - len(nodes), [])
        return Ended(0, _unite(run, writer))


def of_head(run: Run, where: Namespace) -> list[str] | None:
    """Return the entries of a namespace that the head node has handed in; None while it has not ended."""
    found: list[str] | None = None
    with store_errors("look at a run's end", run.path), suppress(FileNotFoundError), opened_dir(run.path) as fd:
        for name in os.listdir(fd):
            if _node(name) == run.head and _is_ending(name):
                handed = _read(fd, name).handed
                found = [*(found or ()), *(entry for one in handed if one[:3] == where[1:] for entry in one.names)]
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
    run = Run(store, name, 0, "")
    with store_errors("unite a run", run.path), suppress(FileNotFoundError):
        with opened_dir(run.path) as fd:
            is_old = _since(fd) < now - DROPPED_S
        return _unite(run, writer, is_old=is_old)
    return []


def _unite(run: Run, writer: str, *, is_old: bool = False) -> list[United]:
    """List what the nodes have handed in, and remove that. Raises `StoreError` if some of it can be listed later."""
    united: list[United] = []
    with suppress(FileNotFoundError), opened_dir(run.path) as fd:
        read = {name: _read(fd, name) for name in sorted(os.listdir(fd)) if _is_ending(name)}
        groups: dict[Namespace, list[Handed]] = {}
        for ending in sorted(read.values(), key=lambda ending: ending.is_head):  # the last one comes to the top
            for one in ending.handed:
                known = one if ending.is_head else one._replace(removal=NOTHING)
                groups.setdefault(Namespace(run.store, *one[:3]), []).append(known)
        united = [_united(where, writer, group) for where, group in groups.items()]
        failed = [one.problem for one in united if one.is_passing]
        if failed and not is_old:
            raise StoreFailed(what=f"unite the run {run.name}", problem=failed[0])
        for name in read:
            unlink_if_there(name, fd)
        if is_old:
            for name in os.listdir(fd):
                unlink_if_there(name, fd)
    with suppress(OSError):  # a node has ended again meanwhile, or another process was first
        os.rmdir(run.path)
    return united


def _united(where: Namespace, writer: str, group: list[Handed]) -> United:
    """List what nodes have handed in for one namespace."""
    files_of = bundles.FilesOf(where)
    ours = {one.row.sha256 for one in group if one.row}

    def merged(old: Listing) -> Listing | None:
        new: Listing | None = None
        for one in group:
            addition = Addition(one.row, one.names, one.changed) if one.row else None
            new = bundles.with_added(new or old, addition, one.removal, files_of) or new
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
    with closing(os.open(run.store, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)) as fd:
        ensure_dir(ENDING, 0o700, fd)
        with opened_dir(ENDING, fd) as above:
            ensure_dir(os.path.basename(run.path), 0o700, above)
            with opened_dir(run.name, above) as found:
                yield found


def _put(fd: int, writer: str, name: str, text: bytes) -> None:
    """Put a name; who puts the same one again has put it."""
    from warmstart.store.atomic import publish, temp_file

    if not text:
        with suppress(FileExistsError):
            os.close(
                os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o444, dir_fd=fd)
            )
        return
    with temp_file(fd, writer) as (temp, out):
        write_all(out, text)
        publish(fd, temp, out, name)


def _read(fd: int, name: str) -> _Ending:
    """Read what one node has put; nothing of one that is gone or damaged."""
    if name.endswith(f".{_NONE}"):
        return _Ending()
    try:
        ending: _Ending = wire.decode(_Ending, wire.parse(unsealed(read_owned(name, LARGEST, fd))))
    except (FileNotFoundError, Damaged, ValueError):
        return _Ending()
    return ending


def _node(name: str) -> str:
    return name.rpartition(".")[0]


def _is_ending(name: str) -> bool:
    return not name.startswith(".") and "." in name


def _since(fd: int) -> float:
    """Return when the first name came."""
    names = os.listdir(fd)
    return min(changed(name, fd) for name in names or ["."])
