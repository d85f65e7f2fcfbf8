"""How long users wait for their images on one node beside a hostile user.

Once by a made-up clock, beside imports that last until their deadline, where nothing is imported; and once as it is,
beside every image of tests/lib/hostile_layers.py. The line of requests is the real one.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.lib.hostile_layers import ATTACKS, alike, emptied, streamed
from tests.lib.layer_registry import LayerRegistry, layer, serving
from tests.lib.layer_stacks import write_packed
from tests.lib.own_processes import OwnProcesses
from tests.lib.site import Site
from tests.lib.slow_relay import slowed
from warmstart.images import choice
from warmstart.images.imports import requests
from warmstart.images.imports.requests import IMPORTS, ImportRequest
from warmstart.paths import Installation, NodePaths
from warmstart.queue import Item, Queue

USERS = 7  # besides the hostile one
HOSTILE, FIRST = 2000, 2001  # uids
IMPORT_S, DEADLINE_S = 300.0, 7200


class Waits(NamedTuple):
    """Seconds from a user's request to the end of its import."""

    first: float  # of all users' first images, the longest
    last: float


class Node:
    """One node's line of requests, by a clock of its own."""

    def __init__(self, directory: Path, parallel: int, monkeypatch: pytest.MonkeyPatch) -> None:
        directory.mkdir()
        monkeypatch.setattr(requests, "IMPORT_S", 100 * DEADLINE_S)
        self._paths = NodePaths(str(directory), str(directory), "/nowhere")
        kind = requests.IMPORTS._replace(parallel=parallel)
        self._own = OwnProcesses(self._paths, self._lasts_s, monkeypatch, kind)
        self._users = set[int]()
        self._asked: dict[str, float] = {}
        self.waits: dict[int, list[float]] = {}

    @staticmethod
    def _lasts_s(item: Item) -> float:
        return DEADLINE_S if item.owner == str(HOSTILE) else IMPORT_S

    def ask(self, uid: int) -> None:
        """Ask for as many images as a user may."""
        self._users.add(uid)
        for number in range(IMPORTS.most):
            request = ImportRequest(
                f"reg.io/u{uid}/{number}:1", "x86_64.oci1", "", f"u{uid}", uid, "c", number, self._own.now
            )
            assert requests.submit(self._paths, request) == ""
            self._asked[request.key] = self._own.now
        self._own.now += 1

    def _ask_all(self) -> None:
        for uid in range(FIRST, FIRST + USERS):
            if uid not in self._users:
                self.ask(uid)

    def run(self) -> None:
        """Let all imports run; the others ask when the first user's are at work."""
        self._own.each = self._ask_all
        self._own.run()
        for key, since in self._asked.items():
            uid = int(key.rpartition(".")[2])
            if uid != HOSTILE:
                self.waits.setdefault(uid, []).append(self._own.done[key] - since)


def waits(directory: Path, parallel: int, monkeypatch: pytest.MonkeyPatch) -> Waits:
    """Return how long the users wait who are not hostile. The hostile one asks first, and has all places."""
    with monkeypatch.context() as patch:
        node = Node(directory, parallel, patch)
        node.ask(HOSTILE)
        node.run()
    ends = sorted(wait for own in node.waits.values() for wait in own)
    assert len(ends) == USERS * IMPORTS.most
    firsts = [min(own) for own in node.waits.values()]
    return Waits(max(firsts), ends[-1])


@pytest.mark.sweep
@pytest.mark.threat(38)
@pytest.mark.parametrize("parallel", [1, 2, 4])
def test_eight_users_one_of_them_hostile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, parallel: int) -> None:
    """Sixteen images each. Beside the hostile one at least one import of the others runs at any time."""
    beside = waits(tmp_path / "beside", parallel, monkeypatch)
    assert beside.first <= USERS * IMPORT_S + 9  # whoever asks does so one second after the other
    assert beside.last <= USERS * IMPORTS.most * IMPORT_S + 9


class Asked(NamedTuple):
    """An image that somebody wants."""

    reference: str
    uid: int


class RealNode:
    """A node's own queue and imports; how long each lasted, from its request."""

    def __init__(self, site: Site) -> None:
        self._paths = Installation(str(site.cluster.prefix)).node("n1")
        self._queue = Queue(self._paths, IMPORTS)
        self._since: dict[str, tuple[Asked, float]] = {}
        self.waits: dict[Asked, float] = {}

    def run(self, asked: Sequence[Asked]) -> None:
        """Ask for images, as many of each user at a time as it may, until all are done but the hostile one's."""
        left = list(asked)
        while any(one.uid != HOSTILE for one in left) or any(one.uid != HOSTILE for one, _ in self._since.values()):
            for one in list(left):
                if sum(other.uid == one.uid for other, _ in self._since.values()) < IMPORTS.most:
                    self._ask(one)
                    left.remove(one)
            self._queue.start_due()
            time.sleep(0.05)
            for key in self._since.keys() - {item.key for item in self._queue.all()}:
                one, since = self._since.pop(key)
                self.waits[one] = time.monotonic() - since
        for key in self._since:
            self._queue.drop(key)

    def _ask(self, one: Asked) -> None:
        kind = f"{os.uname().machine}.{choice.recipe('oci')}"
        request = ImportRequest(
            one.reference, kind, "", f"u{one.uid}", one.uid, "c", 1, time.time()
        )  # fmt: skip
        assert requests.submit(self._paths, request) == ""
        self._since[request.key] = one, time.monotonic()


def hostile_images(registry: LayerRegistry, base: Path) -> dict[str, str]:
    """Serve an image of each attack; return references without the registry, by what they do."""
    made: dict[str, Callable[[], Sequence[tuple[bytes, str]]]] = {name: make for name, (make, _) in ATTACKS.items()}
    made["files that are alike"] = lambda: [streamed(alike(2500))]
    made["a directory that is emptied"] = lambda: [streamed(emptied(8000))]
    found = {}
    for number, (name, make) in enumerate(made.items()):
        write_packed(base / str(number), make())
        found[name] = f"hostile/{number}@{registry.add_layout(base / str(number))}"
    return found


@pytest.mark.sweep
@pytest.mark.threat(38)
@pytest.mark.threat(45)
def test_eight_users_and_every_hostile_image(site: Site, tmp_path: Path) -> None:
    """Sixteen images each, two imports at a time; the hostile user asks first, for those of a slow registry, too."""
    with serving() as registry, slowed(registry.url, 100) as slow:
        site.write_policy(registry=f'{registry.url}", "{slow}')
        policy = site.etc / "policy.yaml"
        policy.write_text(policy.read_text().replace("wait: 60s", "max_size: 256MiB"))
        for hook in ("prolog", "epilog"):  # only a host on which one has run has the node
            assert site.run_hook(hook, site.variables(7400)).returncode == 0
        hostile = [Asked(f"{registry.url}/{name}", HOSTILE) for name in hostile_images(registry, tmp_path).values()]
        hostile.append(Asked(f"{slow}/slow/1@{registry.add_image([layer('f', 1 << 20)], 'slow')}", HOSTILE))
        honest = [
            Asked(f"{registry.url}/u{uid}/{number}@{registry.add_image([layer('f', 1 << 16)], '1')}", uid)
            for uid in range(FIRST, FIRST + USERS)
            for number in range(IMPORTS.most)
        ]
        node = RealNode(site)
        node.run([*hostile, *honest])
        assert {*honest} <= node.waits.keys()
        assert len(site.audit("--event", "image.imported")) >= len(honest)
        site.wait_imports(60)
        site.forget_imports()
