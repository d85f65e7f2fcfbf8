"""A node and a store without Slurm, where users of this host have trees packed. Needs root."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.lib import mounts
from tests.lib.maintenance_site import MaintenanceSite
from warmstart.entry import background
from warmstart.host.deadline import after
from warmstart.host.identity import Identity
from warmstart.paths import NodePaths
from warmstart.seed import node_cache
from warmstart.store import maintenance
from warmstart.wings.trees import packing, requests
from warmstart.wings.trees.offered import PROFILE, directory
from warmstart.wings.trees.requests import TreeRequest

NODE = "n1"
# No accounts of this host: nothing else runs as these, not even another process of pytest.
_FIRST = 64301 + 2 * int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
ALICE, BOB = Identity("ws-tree-alice", _FIRST, _FIRST), Identity("ws-tree-bob", _FIRST + 1, _FIRST + 1)
POLICY = """\
trees: {{prefixes: ["{base}/trees"], max_size: {size}}}
maintenance: {{per_user: {quota}}}
"""


class TreeSite:
    """An installation below `base`, with a prefix for trees that is in memory."""

    def __init__(self, base: Path) -> None:
        self.base = base
        self.trees = base / "trees"
        self.site = MaintenanceSite(base)
        self.policy()
        for path in (self.paths.state, directory(self.paths)):
            Path(path).mkdir(parents=True, mode=0o700)

    def policy(self, size: str = "64MiB", quota: str = "1GiB") -> None:
        """Write the policy anew."""
        path = Path(self.site.installation.policy)
        text = path.read_text().partition("trees:")[0]
        path.write_text(text + POLICY.format(base=self.base, size=size, quota=quota))

    @property
    def paths(self) -> NodePaths:
        """The node's directories."""
        return self.site.installation.node(NODE)

    def tree(self, name: str, user: Identity = ALICE) -> Path:
        """Make what looks like an environment of a user's."""
        tree = self.trees / name
        packages = tree / "lib" / "python3.11" / "site-packages" / "one"
        packages.mkdir(parents=True)
        (tree / "pyvenv.cfg").write_text("home = /usr/bin\n")
        (packages / "__init__.py").write_text("one\n")
        self.own(tree, user)
        return tree

    def own(self, tree: Path, user: Identity = ALICE) -> None:
        """Make a tree a user's, as it would be had this user made it an hour ago."""
        subprocess.run(["/bin/chown", "-Rh", f"{user.uid}:{user.gid}", str(tree)], check=True)
        touch = ["-exec", "/bin/touch", "-h", "-d", "1 hour ago", "{}", "+"]
        subprocess.run(["/usr/bin/find", str(tree), "-depth", *touch], check=True)

    def ask(self, tree: Path, user: Identity = ALICE, marker: str = "") -> bool:
        """Ask for a pack as a prolog does."""
        own = (scope_of(user), *user)
        asked = requests.ask(self.paths, TreeRequest(str(tree), marker, *own, "test", 7, NODE))
        return asked is not None

    def pack(self) -> None:
        """Run the program that packs."""
        assert background.main(str(self.base), [requests.PACKS.name, NODE]) == 0

    def fetch(self, user: Identity = ALICE) -> str:
        """Have the copies of a user's trees on the node, as after jobs; return the last one's bundle."""
        with self.site.client() as store:
            for where in store.run(after(20), maintenance.namespaces, scope_of(user)):
                if where.profile == PROFILE:
                    (offer,) = store.offers([where.scope], PROFILE, where.name, after(20)).offers
                    node_cache.local_copy(
                        self.paths.bundles, where, offer, store=store, most_bytes=1 << 30, deadline=after(20)
                    )
        return offer.bundle

    def bundles(self, user: Identity = ALICE) -> list[str]:
        """Return what jobs of a user are offered."""
        with self.site.client() as store:
            wheres = [
                where
                for where in store.run(after(20), maintenance.namespaces, scope_of(user))
                if where.profile == PROFILE
            ]
            offers = [store.offers([where.scope], PROFILE, where.name, after(20)).offers for where in wheres]
        return [offer.bundle for found in offers for offer in found]

    def events(self, name: str, user: Identity = ALICE) -> list[dict[str, Any]]:
        """Return the events of a user's trees."""
        log = self.base / "audit" / "audit.jsonl"
        events = map(json.loads, log.read_text().splitlines() if log.exists() else ())
        return [event for event in events if event["event"] == name and event["uid"] == user.uid]

    def outcome(self, user: Identity = ALICE) -> tuple[str, object]:
        """Return what became of a user's only pack: `packed` and what is left out, or an error's code and text."""
        if packed := self.events("tree.packed", user):
            return "packed", packed[-1]["left_out"]
        (failed,) = self.events("tree.pack-failed", user)
        return failed["error"]["code"], failed["error"]["reason"]

    def copy(self, user: Identity = ALICE) -> dict[str, str]:
        """Return what the user's copy has: the mode of each path."""
        (bundle,) = self.base.glob(f"store/artifacts/user-{user.uid}-*/whole-trees/*/*.sqsh")
        done = subprocess.run(["/usr/bin/unsquashfs", "-lln", bundle], check=True, capture_output=True)
        lines = done.stdout.decode(errors="surrogateescape").splitlines()
        return {path: line.partition(" ")[0] for line in lines if (path := line.partition(" squashfs-root/tree/")[2])}

    def left(self) -> list[str]:
        """Return what a pack has left behind: on the node, in the store, as a process of a user's."""
        left = os.listdir(directory(self.paths))
        left += [str(path) for path in (self.base / "store").rglob(".tmp-*")]
        left += [f"squashfs without manifest: {path}" for path in (self.base / "store").rglob("*.sqsh")
                 if not path.with_suffix(".json").exists()]  # fmt: skip
        return left + [f"process {pid}" for pid in processes(ALICE.uid, BOB.uid)]


def scope_of(user: Identity) -> str:
    """Return a user's own scope."""
    return f"user-{user.uid}-{user.name}"


def processes(*uids: int) -> Iterator[int]:
    """Yield the processes of these uids."""
    for status in Path("/proc").glob("[0-9]*/status"):
        try:
            lines = status.read_text().splitlines()
        except OSError:
            continue
        uid = next(line.split()[1] for line in lines if line.startswith("Uid:"))
        state = next(line.split()[1] for line in lines if line.startswith("State:"))
        if int(uid) in uids and state != "Z":
            yield int(status.parent.name)


@contextmanager
def a_tree_site(base: Path) -> Iterator[TreeSite]:
    """Give a site; its trees are gone afterwards."""
    with mounts.tmpfs(base / "trees", "128m", 20_000), pytest.MonkeyPatch.context() as patch:
        patch.setattr(packing, "MOST_FILES", 2000)
        yield TreeSite(base)
