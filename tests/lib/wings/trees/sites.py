"""A node and a store without Slurm, where users have trees packed."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.lib import command_line, mounts
from tests.lib.image_place import processes_of
from tests.lib.node import NODE, POLICY, Node
from tests.lib.policy_site import offering
from warmstart.caches.store import generations, layout
from warmstart.caches.store.listing import Row
from warmstart.entry import background
from warmstart.host import process
from warmstart.host.deadline import after
from warmstart.host.identity import Identity
from warmstart.policy.shared import SharedPath
from warmstart.queue import Queue
from warmstart.wings.trees import packing, requests
from warmstart.wings.trees.offered import PROFILE, directory
from warmstart.wings.trees.requests import TreeRequest

# No accounts of this host: nothing else runs as these, not even another process of pytest.
_FIRST = 64301 + 2 * int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
ALICE, BOB = Identity("ws-tree-alice", _FIRST, _FIRST), Identity("ws-tree-bob", _FIRST + 1, _FIRST + 1)
ME = Identity("ws-alice", os.getuid(), os.getgid())
NOT_ROOT = os.getuid() or 64201  # who owns a tree: what is root's is none
TREES = """\
trees: {{prefixes: ["{base}/trees"], max_size: {size}, keep: {keep}}}
maintenance: {{per_user: {quota}}}
constant_path: spank
"""


class TreeSite(Node):
    """An installation below `base`, with a prefix for trees; with `as_me` its users are whoever runs the tests."""

    def __init__(self, base: Path, *, as_me: pytest.MonkeyPatch | None = None) -> None:
        super().__init__(base, as_me=as_me)
        self.trees = base / "trees"
        self.trees.mkdir(exist_ok=True)
        self.user = ALICE
        if as_me:
            self.user = ME
            self.write(offering(self.policy, trees={"prefixes": [str(self.trees)]}))
            as_me.setattr(packing, "QUIET_S", 0.0)
            as_me.setattr(process, "be_idle", lambda: None)
        else:
            self.policy_of()
        for path in (self.paths.state, directory(self.paths)):
            Path(path).mkdir(parents=True, mode=0o700)

    def policy_of(self, size: str = "64MiB", quota: str = "1GiB", keep: str = "1GiB") -> None:
        command_line.installed(self.base, (POLICY + TREES).format(base=self.base, size=size, quota=quota, keep=keep))

    def tree(self, name: str, user: Identity | None = None) -> Path:
        """Make what looks like an environment of a user's, of six names and 20 bytes."""
        tree = self.trees / name
        packages = tree / "lib" / "python3.11" / "site-packages" / "one"
        packages.mkdir(parents=True)
        (tree / "pyvenv.cfg").write_text("home = /usr/bin\n")
        (packages / "__init__.py").write_text("one\n")
        self.own(tree, user)
        return tree

    def own(self, tree: Path, user: Identity | None = None) -> None:
        """Make a tree a user's, as it would be had this user made it an hour ago."""
        user = user or self.user
        uid = NOT_ROOT if user == ME else user.uid
        if os.geteuid() == 0:
            subprocess.run(["/bin/chown", "-Rh", f"{uid}:{user.gid or uid}", str(tree)], check=True)
        touch = ["-exec", "/bin/touch", "-h", "-d", "1 hour ago", "{}", "+"]
        subprocess.run(["/usr/bin/find", str(tree), "-depth", *touch], check=True)

    def ask(
        self, tree: Path, user: Identity | None = None, marker: str = "", shared: SharedPath | None = None, job: int = 7
    ) -> bool:
        """Ask for a pack as a prolog does."""
        user = user or self.user
        scope = shared.scope if shared else scope_of(user)
        asked = TreeRequest(str(tree), marker, scope, *user, "test", job, NODE, shared=shared)
        return requests.ask(self.paths, asked) is not None

    def pack(self) -> None:
        for item in Queue(self.paths, requests.PACKS).due():
            assert background.main(str(self.base), [requests.PACKS.name, NODE, item.key]) == 0

    def rows(self, user: Identity | None = None) -> list[Row]:
        """Return the copies of a user's trees that jobs are shown."""
        store = self.client()
        known = store.run(after(20), layout.namespaces, scope_of(user or self.user))
        return [
            row
            for where in known
            if where.profile == PROFILE
            for row in store.worker.run(after(20), generations.read, where).rows
        ]

    def bundles(self, user: Identity | None = None) -> list[str]:
        return [row.sha256 for row in self.rows(user)]

    def told_of(self, name: str, user: Identity | None = None) -> list[dict[str, Any]]:
        return [event for event in self.events(name) if event.get("uid") == (user or self.user).uid]

    def outcome(self, user: Identity | None = None) -> tuple[str, object]:
        """Return what became of a user's only pack: `packed` and what is left out, or an error's code and text."""
        if packed := self.told_of("tree.packed", user):
            return "packed", packed[-1]["left_out"]
        (failed,) = self.told_of("tree.pack-failed", user)
        return failed["error"]["code"], failed["error"]["reason"]

    def copy(self, scope: str = "") -> dict[str, tuple[str, str]]:
        """Return what the copy of a scope has, by default the user's: mode and owner of each path, "" for the top."""
        (bundle,) = self.base.glob(f"store/caches/{scope or scope_of(self.user)}/whole-trees/*/*.sqsh")
        done = subprocess.run(["/usr/bin/unsquashfs", "-lln", bundle], check=True, capture_output=True)
        lines = [line for line in done.stdout.decode(errors="surrogateescape").splitlines() if " squashfs-root" in line]
        parts = [line.partition(" squashfs-root")[::2] for line in lines]
        return {path.lstrip("/").removeprefix("tree/"): (about.split()[0], about.split()[1]) for about, path in parts}

    def left(self) -> list[str]:
        """Return what a pack has left behind: on the node, in the store, as a process of a user's."""
        left = os.listdir(directory(self.paths))
        left += [str(path) for path in self.store.rglob(".tmp-*")]
        left += [str(path) for path in self.store.rglob("*.sqsh") if not path.with_suffix(".json").exists()]
        return left + [f"process {pid}" for user in (ALICE, BOB) for pid in processes_of(user.uid, self.base)]


def scope_of(user: Identity) -> str:
    return f"user-{user.uid}-{user.name}"


@contextmanager
def a_tree_site(base: Path) -> Iterator[TreeSite]:
    """Give a site; its trees are in memory, and gone afterwards."""
    with mounts.tmpfs(base / "trees", "128m", 20_000), pytest.MonkeyPatch.context() as patch:
        patch.setattr(packing, "MOST_FILES", 2000)
        yield TreeSite(base)
