"""Operations on a tree with the rights of the user who asks for it: the uid, and all groups that this node knows.

The user's own processes can stop and kill these, but not trace them. Whatever they say, root mounts nothing outside of
the policy's prefixes, and makes every inode itself. A file system that hangs ends an operation at its deadline.
"""

from __future__ import annotations

import os

from warmstart.host.deadline import Deadline
from warmstart.host.identity import Identity, surrender
from warmstart.host.worker import Worker
from warmstart.lean import TYPE_CHECKING, Sequence, partial
from warmstart.policy.shared import is_below

if TYPE_CHECKING:
    from warmstart.policy.shared import SharedPath
    from warmstart.wings.trees.current import Look
    from warmstart.wings.trees.stage import Stage
    from warmstart.wings.trees.walk import Bounds

PIECE_S = 120.0  # for one piece of a walk


class TreeClient:
    """A tree as its user sees it."""

    def __init__(self, user: Identity, tree: str, records: int = -1) -> None:
        """Work with a user's rights on the tree at a path; `records` is an open file of root's, for those of `walk`."""
        self._tree = tree
        self._records = records
        groups = os.getgrouplist(user.name, user.gid)
        self._worker = Worker(user, f"the file system of {tree}", take=partial(surrender, groups=groups))

    def look(
        self, prefixes: tuple[str, ...], marker: str, deadline: Deadline, shared: Sequence[SharedPath] = ()
    ) -> Look:
        """Return the tree as it is now; `shared` are trees of which rules say that they are everybody's.

        Raises `TreeUnusable`, or `WorkerSilent` where its file system hangs.
        """
        from warmstart.caches.store.layout import is_sha256
        from warmstart.policy.shared import covering
        from warmstart.wings.trees import current

        seen = self._worker.run(deadline, current.look, self._tree, list(prefixes), marker, list(shared))
        is_plain = os.path.normpath(seen.path) == seen.path and "\n" not in seen.path
        if not (is_plain and is_below(seen.path, prefixes) and is_sha256(seen.stamp)):
            raise current.TreeUnusable(tree=self._tree, problem=f"it leads to {seen.path!a}, which may be no tree")
        if seen.identity and not seen.identity.replace(" ", "").isdecimal():
            raise current.TreeUnusable(tree=self._tree, problem=f"it is said to be {seen.identity[:80]!a}")
        tree = covering(seen.path, shared)
        if seen.marker != ("" if tree else marker):
            raise current.TreeUnusable(
                tree=self._tree, problem="another file than it has to be says whether it changed"
            )
        if seen.owner == 0 and not (tree and 0 in tree.uids):
            # The system's: what programs with more rights read must not be another version.
            raise current.TreeUnusable(tree=self._tree, problem="it belongs to root")
        return seen

    def walk(
        self, path: str, bounds: Bounds, stage: Stage, deadline: Deadline, owners: list[int] | None = None
    ) -> None:
        """Copy the tree at a path without links into a stage; `owners` as `walk.walk`.

        Raises `TreeUnusable`, `TreeRefused`, `WorkerSilent`, and `OSError` if the stage's disk fails.
        """
        from warmstart.wings.trees import current, walk

        go_on, taken = os.pipe()
        worker = self._worker.keeping(self._records, go_on)
        try:
            with worker.stream(deadline, walk.walk, path, bounds, owners, self._records, go_on) as has_more:
                is_whole = False
                while not is_whole:
                    may_go_on = has_more(deadline.within(PIECE_S))
                    is_whole = stage.take(self._records)
                    if not (may_go_on or is_whole):
                        raise current.TreeUnusable(tree=self._tree, problem="the walk ended early")
                    os.write(taken, b".")
        finally:
            os.close(go_on)
            os.close(taken)
