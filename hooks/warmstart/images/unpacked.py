"""Images that lie unpacked on this node, once for all jobs that start there (docs/reference/images.md, Unpacked once).

    <paths.shelf>/<node>/images/        root, 0700; its flock: shared by who takes a tree, exclusive by who renames one
        <name>/                         root, 0700; its mtime is the last use
            tree/                       the image's files; all belong to the account that has unpacked them
            about.json                  `About`
        <name>.unpacking/               being made while a process holds a flock on it, otherwise abandoned; whole when
                                        it has about.json, and then on its way to the disk
        <name>.<hex>.gone/              on its way out

A tree's name is a hash of the image's name in the store and of the store that it lies in. So a private image has a tree
of its own scope, which nobody finds who knows the image's digest alone. Whoever takes a tree has checked that the job
may read that scope.

A run's state names the tree before anything of it is shown (`shelf.note_held`), and an eviction reads these names. So
no tree goes while a run lives that was given it. Whoever waits is given a tree that is whole: enroot's own is not
written to the disk either before a container starts. Its name it gets later, so that after a crash no half tree has
one. Runs as root. Hot path of jobs on nodes with a shelf.
`unpacks` asks for a tree, `unpacking` makes and evicts them.
"""

from __future__ import annotations

import os

from warmstart import shelf as shelves
from warmstart.host import files
from warmstart.host.deadline import Deadline
from warmstart.host.files import PATH, opened_dir
from warmstart.lean import TYPE_CHECKING, NamedTuple, sha256, suppress
from warmstart.paths import NodePaths

if TYPE_CHECKING:
    from warmstart.policy.keys import Policy
    from warmstart.run.state import Run

TREE = "tree"
ABOUT = "about.json"
UNPACKING = ".unpacking"
FOLDER = "images"  # of a node, on the shelf


class ImageKey(NamedTuple):
    """An image of a store: what a tree is of."""

    image: str  # its name there: `images.store.layout.image_name`
    private: str = ""  # the name of the store of private images, "" for the shared one

    @property
    def tree(self) -> str:
        """The name of its tree on any node. Mounts show it to all users."""
        name: str = sha256(f"{self.private}\0{self.image}".encode()).hexdigest()[:32]
        return name


class Unpacked(NamedTuple):
    """A tree that a run has been given."""

    name: str
    path: str  # absolute; below a directory that only root may enter
    uid: int  # of all its files
    gid: int  # the same

    def open(self) -> int:
        """Return a descriptor (O_PATH) of the tree, which may have got its name since. Raises `OSError`."""
        with suppress(FileNotFoundError):
            return os.open(self.path, PATH)
        return os.open(self.path.replace(f"{UNPACKING}/", "/"), PATH)


def shelf_of(policy: Policy, node: str) -> str:
    """Return the directory of a node's trees, "" if the policy names no shelf."""
    return shelves.folder_of(policy, node, FOLDER)


def take(shelf: str, key: ImageKey, paths: NodePaths, run: Run, deadline: Deadline) -> Unpacked | None:
    """Return the tree of an image, and note in the state that a run has it; None if this node has none.

    `shelf` is that of `shelf_of`. Whoever calls this has checked that the run's job may read the image. The note goes
    with the run's state. Raises `StateFull`, `FileSystemBroken`, and `OSError`; `ETIME` if an eviction held the shelf
    until the deadline.
    """
    with suppress(FileNotFoundError), opened_dir(shelf) as fd:
        if not (place := find(fd, key.tree)):  # without the lock: most of the time there is none, or it stays
            return None
        shelves.share(fd, deadline)
        if place != key.tree and not (place := find(fd, key.tree)):
            return None
        owner = os.stat(f"{place}/{TREE}", dir_fd=fd)
        shelves.note_held(paths.state, run.job_id, key.tree)
        os.utime(place, dir_fd=fd)
        return Unpacked(key.tree, f"{shelf}/{place}/{TREE}", owner.st_uid, owner.st_gid)
    return None


def find(shelf: int, name: str) -> str:
    """Return the directory of a tree that may be taken, below the open directory `shelf`; "" if there is none."""
    with suppress(FileNotFoundError):
        os.stat(f"{name}/{TREE}", dir_fd=shelf)
        return name
    with suppress(FileNotFoundError), opened_dir(name + UNPACKING, shelf) as fd:
        os.stat(ABOUT, dir_fd=fd)
        return "" if files.try_flock(fd, shared=True) else name + UNPACKING
    return ""
