"""Read and change a namespace's listing: generations, files that a number names and that link(2) makes.

    <namespace>/listing/00000007       generation 7, written once, never renamed
                        .tmp-…  lock   being written; who writes holds a flock, which only saves tries

**link(2) is the compare-and-swap**: it never overwrites, on NFS and Lustre as on a local disk. So no lock is needed,
and a process may die or sleep for as long as it likes between any two of these steps:

    read    list the directory; open the highest number; then on to the next numbers by name, as a listing may be old
    change  read → merge → write a temporary file, fsync → link it to the next number → look again

- The link fails if somebody was first (after which NFS is asked whose inode it is: it may repeat a link that had
  worked). Then the next number is read by name, and all begins anew, after a pause that grows.
- **Look again**: old generations are removed, so a writer that slept can make a number anew that had been there, below
  the newest. So it lists the directory once more, and believes its link only if its number is the highest, or if the
  next one names it as its base, by the hash of its content. Else it takes its own away, and begins anew.
- There is no name such as `latest`: renamed by a writer that slept it would go back, and a chain that was cleaned in
  the meantime would end there for ever.

A generation that cannot be read is passed over by readers, for the one before. A writer does so only if the file is
not what its own hash says; an error of the file system ends the change: a sick client must not make everybody forget
rows. So nothing here can need repair. Whoever comes removes what has not been the newest for an hour: readers that have
a head still find its names. In a storm of writers that is too much: beyond a hundred, a minute is enough.

`tests/unit/caches/test_generations.py` tries every order of these steps, with writers that are killed or sleep.
"""

from __future__ import annotations

import errno
import os
import time
from itertools import pairwise

from warmstart.caches.store.layout import LISTING, Damaged, Namespace, read_owned
from warmstart.caches.store.listing import LARGEST, LINES_OF_HEAD, Listing, OfOtherFormat, decode, encode
from warmstart.host.deadline import jittered
from warmstart.host.files import changed, opened_dir, unlink_if_there, write_all
from warmstart.lean import TYPE_CHECKING, Callable, suppress
from warmstart.store.layout import StoreFailed, store_errors

if TYPE_CHECKING:
    Merge = Callable[[Listing], Listing | None]

TRIES, LOCK_S = 20, 10.0
SHORTEST_PAUSE_S, LONGEST_PAUSE_S = 0.01, 2.0
KEPT_S = 3600.0  # longer than any reader uses a head that it has read
MANY, STORM_S = 100, 60.0
_LOCK = "lock"
_SWEPT = 2  # old ones that a writer removes: more than it makes
_READS = 5  # of a directory in which the highest number is gone: others are at work


class StoreBusy(StoreFailed):
    """So many processes publish into a namespace that this one did not come to its turn."""

    code = "store-busy"
    template = "{what}: others were first {tries} times"
    hint = "what is published waits on its node and is tried again"


def head(where: Namespace) -> Listing:
    """Return the newest generation without names of entries; an empty one if nothing was published.

    A warm prolog does this for each profile, in nine calls. Opening the directory has its names read anew (nfs(5)); one
    that is linked at this moment is missed.
    """
    directory = _directory(where)
    with suppress(OSError, OfOtherFormat):
        newest = _numbers(os.listdir(directory))[-1:]
        return _open(None, where, newest[0], named=False, above=f"{directory}/") if newest else Listing()
    return read(where, named=False)


def read(where: Namespace, *, named: bool = True, is_writer: bool = False) -> Listing:
    """Return the newest generation; a writer's, who may pass over none, if it is for who removes something."""
    with store_errors("read a listing", where.path), suppress(FileNotFoundError):
        return _newest(where, 0, named=named, is_writer=is_writer)[0]
    return Listing()


def generation(where: Namespace, number: int, identity: str, *, named: bool) -> Listing | None:
    """Return the generation of this number and identity; None if it is gone."""
    with (
        store_errors("read a listing", where.path),
        suppress(FileNotFoundError, Damaged),
        opened_dir(_directory(where)) as fd,
    ):
        found = _open(fd, where, number, named=named)
        return found if found.identity == identity else None
    return None


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
        numbers, before = _numbers(names), now - KEPT_S
        old = [name for name in names if name.startswith(TEMP_PREFIX) and changed(name, fd) < before]
        for number, following in pairwise(numbers):
            old += [_name(number)] if changed(_name(following), fd) < before else []
        return [name for name in old if unlink_if_there(name, fd)]
    return []


def named_bundles(where: Namespace) -> set[str]:
    """Return the hashes of the bundles that any generation names, none of which may go. Raises `OSError`."""
    newest = read(where, named=False, is_writer=True)
    named = {row.sha256 for row in newest.rows}
    with suppress(FileNotFoundError), opened_dir(_directory(where)) as fd:
        for number in _numbers(os.listdir(fd)):
            with suppress(FileNotFoundError, Damaged):
                named.update(row.sha256 for row in _open(fd, where, number, named=False).rows)
    return named


def _directory(where: Namespace) -> str:
    return f"{where.path}/{LISTING}"


def _name(number: int) -> str:
    return f"{number:08d}"


def _numbers(names: list[str]) -> list[int]:
    """Return the numbers of generations, sorted."""
    return sorted(int(name) for name in names if name.isascii() and name.isdecimal() and _name(int(name)) == name)


def _open(fd: int | None, where: Namespace, number: int, *, named: bool, above: str = "") -> Listing:
    """Read one generation. Raises `OSError`, `Damaged` among them, and `OfOtherFormat`."""
    data = read_owned(above + _name(number), LARGEST, fd, lines=0 if named else LINES_OF_HEAD)
    found = decode(data, where.path, named=named)
    if found.number != number:
        raise Damaged("it is of another number")
    return found


def _newest(where: Namespace, known: int, *, named: bool, is_writer: bool) -> tuple[Listing, int]:
    """Return the newest generation, and the highest number there is: another one, if that cannot be used.

    `known` is a number that there was, though a listing may lack it. Raises the first error if none can be used.
    """
    for _ in range(_READS):
        with opened_dir(_directory(where)) as fd:  # anew: else NFS shows an old one (nfs(5), Directory entry caching)
            there = sorted({*_numbers(os.listdir(fd)), known} - {0})
            try:
                found = _highest(fd, where, there, named=named, is_writer=is_writer)
            except FileNotFoundError:  # it was removed meanwhile, so there is a higher one
                known = 0
                continue
            top = there[-1] if there else 0
            with suppress(FileNotFoundError):
                while True:
                    try:
                        found = _open(fd, where, top + 1, named=named)
                    except Damaged:
                        pass
                    except (OSError, OfOtherFormat) as error:
                        if is_writer or isinstance(error, FileNotFoundError):
                            raise
                        break
                    top += 1
            return found, top
    raise OSError(errno.EBUSY, "it changes all the time", _directory(where))


def _highest(fd: int, where: Namespace, there: list[int], *, named: bool, is_writer: bool) -> Listing:
    """Return the highest of these generations that can be used; an empty one if there is none.

    Raises `FileNotFoundError` if the highest is gone.
    """
    failed: Exception | None = None
    for number in reversed(there):
        try:
            return _open(fd, where, number, named=named)
        except FileNotFoundError:
            if number == there[-1]:
                raise
        except (OSError, OfOtherFormat) as error:
            if is_writer and not isinstance(error, Damaged):
                raise
            failed = failed or error
    if failed and not is_writer:
        raise failed
    return Listing()


def _linked(where: Namespace, writer: str, number: int, text: bytes) -> bool:
    """Link a generation; return whether nobody was first."""
    from warmstart.store.atomic import publish, temp_file  # not needed to read

    with opened_dir(_directory(where)) as fd, temp_file(fd, writer) as (temp, out):
        write_all(out, text)
        return publish(fd, temp, out, _name(number))


def _stands(where: Namespace, new: Listing) -> bool:
    """Look again, and return whether a generation that was linked is in the chain; else take it away."""
    name = _name(new.number)
    with opened_dir(_directory(where)) as fd:
        there = _numbers(os.listdir(fd))
        try:
            if _open(fd, where, new.number, named=False).identity != new.identity:
                return False
            if there[-1] > new.number and _open(fd, where, new.number + 1, named=False).base != new.identity:
                raise FileNotFoundError  # not in this chain
        except (FileNotFoundError, Damaged):
            unlink_if_there(name, fd)
            return False
        now = changed(name, fd)  # by the store's clock
        for number, following in pairwise(there[: _SWEPT + 1]):
            age = now - changed(_name(following), fd)  # since it is no more the newest
            if age > (STORM_S if len(there) > MANY else KEPT_S):
                unlink_if_there(_name(number), fd)
    return True
