"""Read and change a namespace's listing: generations, files that a number names and that link(2) makes.

    <namespace>/listing/00000007       generation 7, written once, never renamed
                        .tmp-…  lock   being written; who writes holds a flock, which only saves tries

**link(2) is the compare-and-swap**: it never overwrites, on NFS and Lustre as on a local disk. So no lock is needed,
and a process may die or sleep for as long as it likes between any two of these steps:

    read    list the directory; open the highest number
    change  read → merge → write a temporary file, fsync → link it to the next number → look again

- Opening a directory has its names read anew (nfs(5), close-to-open). A number that is missing in them even so is one
  that was linked at this moment: a reader misses it, and the link of a writer fails.
- The link fails if somebody was first (after which NFS is asked whose inode it is: it may repeat a link that had
  worked). Then this number is known to be there, and all begins anew, after a pause that grows.
- **Look again**: old generations are removed, so a writer that slept can make a number anew that had been there, below
  the newest. So it lists the directory once more, and believes its link only if its number is the highest, or if the
  next one names it as its base, by the hash of its content. Else it takes its own away, and begins anew.
- There is no name such as `latest`: renamed by a writer that slept it would go back, and a chain that was cleaned in
  the meantime would end there for ever.

A generation that cannot be read is passed over by readers, for the one before. A writer does so only if the file is not
what its own hash says; an error of the file system ends the change: a sick client must not make everybody forget
rows. So nothing here can need repair. Whoever comes removes what has not been the newest for an hour: nodes of a job
read the generation that their first one has read. In a storm of writers that is too much: beyond 64 MiB the eldest go.

`tests/unit/caches/test_generations.py` tries every order of these steps, with writers that are killed or sleep.
"""

from __future__ import annotations

import errno
import os
import time

from warmstart.caches.store.layout import LISTING, Damaged, Namespace, read_owned
from warmstart.caches.store.listing import LARGEST, LINES_OF_HEAD, Listing, OfOtherFormat, decode, encode
from warmstart.host.deadline import jittered
from warmstart.host.files import changed, opened_dir, unlink_if_there
from warmstart.lean import TYPE_CHECKING, Callable, suppress
from warmstart.store.layout import StoreFailed, store_errors

if TYPE_CHECKING:
    Merge = Callable[[Listing], Listing | None]

TRIES, LOCK_S = 20, 10.0
SHORTEST_PAUSE_S, LONGEST_PAUSE_S = 0.01, 2.0
KEPT_S = 3600.0  # longer than nodes of a job take to read what their first one has proposed
KEPT_BYTES, FEWEST_KEPT = 64 << 20, 8  # of generations, if they are many or large
_LOCK = "lock"
_READS = 5  # of a directory in which the highest number is gone: others are at work


class StoreBusy(StoreFailed):
    """So many processes publish into a namespace that this one did not come to its turn."""

    code = "store-busy"
    template = "{what}: others were first {tries} times"
    hint = "what is published waits on its node and is tried again"


def read(where: Namespace, *, named: bool = True, is_writer: bool = False) -> Listing:
    """Return the newest generation, without names of entries if it is not `named`; an empty one if there is none.

    A warm prolog does this for each profile: it lists a directory and reads the beginning of a file. Who publishes or
    removes something reads as a writer, who passes over none but a damaged one, be it the only one.
    """
    with store_errors("read a listing", where.path), suppress(FileNotFoundError):
        return _newest(where, 0, named=named, is_writer=is_writer)[0]
    return Listing()


def at(where: Namespace, number: int, identity: str, *, named: bool) -> Listing:
    """Return the generation of this number and identity; raises `StoreFailed` if it is gone."""
    if not number:
        return Listing()
    with store_errors("read a listing", where.path):
        found = _open(where, number, named=named)
        if found.identity != identity:
            raise FileNotFoundError(errno.ENOENT, f"generation {number} is another one")
        return found


def change(where: Namespace, writer: str, merge: Merge) -> Listing | None:
    """Link the next generation, which `merge` makes of the newest; return it, or None if `merge` changes nothing.

    `merge` runs again if another process was first. Raises its errors, `HarvestTooLarge`, `StoreBusy`, `OfOtherFormat`,
    and `StoreFailed` also if the namespace is missing.
    """
    from warmstart.store.locks import lock_or_proceed  # not needed to read

    known, pause = 0, SHORTEST_PAUSE_S
    with store_errors("change a listing", where.path):
        for _ in range(TRIES):
            with lock_or_proceed(_directory(where), _LOCK, LOCK_S):  # saves tries, and no more
                base, top = _newest(where, known, named=True, is_writer=True)
                new = merge(base)
                if new is None:
                    return None
                new, text = encode(new._replace(number=top + 1, base=base.identity))
                if _linked(where, writer, new.number, text) and _stands(where, new):
                    return new
            known = new.number
            time.sleep(jittered(pause))
            pause = min(pause * 2, LONGEST_PAUSE_S)
    raise StoreBusy(what="change a listing", tries=TRIES)


def clean(where: Namespace, now: float) -> list[str]:
    """Remove old generations and what writers left that died; return the names."""
    from warmstart.store.atomic import TEMP_PREFIX

    with (
        store_errors("clean a listing", where.path),
        suppress(FileNotFoundError),  # whoever made the namespace died before that
        opened_dir(_directory(where)) as fd,
    ):
        names = os.listdir(fd)
        left = [name for name in names if name.startswith(TEMP_PREFIX) and changed(name, fd) < now - KEPT_S]
        return [*filter(lambda name: unlink_if_there(name, fd), left), *_clean(fd, _numbers(names), now)]
    return []


def named_bundles(where: Namespace) -> set[str]:
    """Return the hashes of the bundles that any generation names, none of which may go. Raises `OSError`."""
    newest = read(where, named=False, is_writer=True)
    named = {row.sha256 for row in newest.rows}
    with suppress(FileNotFoundError):
        for number in _numbers(os.listdir(_directory(where))):
            with suppress(FileNotFoundError, Damaged):
                named.update(row.sha256 for row in _open(where, number, named=False).rows)
    return named


def _directory(where: Namespace) -> str:
    return f"{where.path}/{LISTING}"


def _name(number: int) -> str:
    return f"{number:08d}"


def _numbers(names: list[str]) -> list[int]:
    """Return the numbers of generations, sorted."""
    return sorted(int(name) for name in names if name.isascii() and name.isdecimal() and _name(int(name)) == name)


def _open(where: Namespace, number: int, *, named: bool) -> Listing:
    """Read one generation. Raises `OSError`, `Damaged` among them, and `OfOtherFormat`."""
    data = read_owned(f"{_directory(where)}/{_name(number)}", LARGEST, lines=0 if named else LINES_OF_HEAD)
    found = decode(data, where.path, named=named)
    if found.number != number:
        raise Damaged("it is of another number")
    return found


def _newest(where: Namespace, known: int, *, named: bool, is_writer: bool) -> tuple[Listing, int]:
    """Return the newest generation, and the highest number there is: another one, if that cannot be used.

    `known` is a number that there was, though a listing may lack it. Raises the first error if none can be used.
    """
    for _ in range(_READS):
        there = sorted({*_numbers(os.listdir(_directory(where))), known} - {0})
        failed: Exception | None = None
        for number in reversed(there):
            try:
                return _open(where, number, named=named), there[-1]
            except FileNotFoundError:
                if number == there[-1]:  # it was removed meanwhile, so there is a higher one
                    break
            except (OSError, OfOtherFormat) as error:
                if is_writer and not isinstance(error, Damaged):
                    raise
                failed = failed or error
        else:
            if failed and not is_writer:
                raise failed
            return Listing(), max(there, default=0)
        known = 0
    raise OSError(errno.EBUSY, "it changes all the time", _directory(where))


def _linked(where: Namespace, writer: str, number: int, text: bytes) -> bool:
    """Link a generation; return whether nobody was first."""
    from warmstart.store import atomic  # not needed to read

    with opened_dir(_directory(where)) as fd:
        return atomic.put(fd, writer, _name(number), text)


def _stands(where: Namespace, new: Listing) -> bool:
    """Look again, and return whether a generation that was linked is in the chain; else take it away."""
    name = _name(new.number)
    with opened_dir(_directory(where)) as fd:
        there = _numbers(os.listdir(fd))
        try:
            if _open(where, new.number, named=False).identity != new.identity:
                return False
            if there[-1] > new.number and _open(where, new.number + 1, named=False).base != new.identity:
                raise FileNotFoundError  # not in this chain
        except (FileNotFoundError, Damaged):
            unlink_if_there(name, fd)
            return False
        _clean(fd, there, changed(name, fd))  # the time by the store's clock
    return True


def _clean(fd: int, there: list[int], now: float) -> list[str]:
    """Remove generations that have not been the newest for long, and the eldest of too many; return their names."""
    names, gone = [_name(number) for number in there], list[str]()
    if len(names) < 2:
        return gone
    with suppress(FileNotFoundError):  # another process removes them, too
        most = max(FEWEST_KEPT, KEPT_BYTES // os.stat(names[-1], dir_fd=fd).st_size)
        for number, following in enumerate(names[1:]):
            if changed(following, fd) >= now - KEPT_S and len(names) - number <= most:
                break
            os.unlink(names[number], dir_fd=fd)
            gone.append(names[number])
    return gone
