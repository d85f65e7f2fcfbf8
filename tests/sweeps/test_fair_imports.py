"""How long users wait for their images on one node beside a hostile user.

Once by a made-up clock, beside imports that last until their deadline, where nothing is imported (`-o log_cli=1
--log-cli-level=INFO` shows the waits); and once as it is, beside every image of tests/support/hostile_layers.py. The
queue of requests is the real one.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.cluster.site import RULES, Site
from tests.support.hostile_layers import ATTACKS, alike, emptied, streamed
from tests.support.layer_registry import LayerRegistry, layer, serving
from tests.support.layer_stacks import write_packed
from tests.support.reports import write_fragment
from tests.support.slow_relay import slowed
from warmstart.images import choice
from warmstart.images.imports import requests
from warmstart.images.imports.requests import MOST_PER_USER, ImportRequest
from warmstart.images.query import Queue

USERS = 7  # besides the hostile one
HOSTILE, FIRST = 2000, 2001  # uids
IMPORT_S, DEADLINE_S = 300.0, 7200


class Waits(NamedTuple):
    """Seconds from a user's request to the end of its import."""

    first: float  # of all users' first images, the longest
    middle: float  # of all images
    last: float


class Node:
    """One node's queue, by a clock of its own."""

    def __init__(self, directory: Path, parallel: int, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = time.time()
        self._queue = Queue(str(directory), "/nowhere", parallel, 100 * DEADLINE_S)
        self._at_work: dict[str, tuple[float, ExitStack]] = {}  # key → end, its locks
        self._asked: dict[str, ImportRequest] = {}
        self.waits: dict[int, list[float]] = {}
        monkeypatch.setattr(requests, "_start", lambda _program, key: self._begin(key))
        monkeypatch.setattr(time, "time", lambda: self.now)

    def ask(self, uid: int) -> None:
        """Ask for as many images as a user may."""
        for number in range(MOST_PER_USER):
            reference = f"reg.io/u{uid}/{number}:1"
            request = ImportRequest(
                reference,
                "x86_64.oci1",
                "",
                f"u{uid}",
                uid,
                "",
                "c",
                "n1",
                number,
                "r",
                self.now + len(self._asked) / 1e6,
            )
            assert requests.submit(self._queue, request) == ""
            self._asked[request.key] = request

    def run(self) -> None:
        """Let imports run until all are done but those of the hostile user."""
        while any(request.uid != HOSTILE for request in self._asked.values()):
            requests.start_due(self._queue)
            key, (end, locks) = min(self._at_work.items(), key=lambda item: item[1][0])
            self.now = end
            del self._at_work[key]
            request = self._asked.pop(key)
            self.waits.setdefault(request.uid, []).append(end - request.asked)
            requests.drop(self._queue.directory, key)
            locks.close()
        for _, locks in self._at_work.values():
            locks.close()

    def _begin(self, key: str) -> None:
        request, locks = self._asked[key], ExitStack()
        assert locks.enter_context(requests.held(self._queue.directory, key))
        assert locks.enter_context(requests.slot(self._queue, request))
        self._at_work[key] = self.now + (DEADLINE_S if request.uid == HOSTILE else IMPORT_S), locks


def waits(directory: Path, parallel: int, monkeypatch: pytest.MonkeyPatch, *, hostile: bool) -> Waits:
    """Return how long the users wait who are not hostile. A hostile one asks first, and has all slots."""
    with monkeypatch.context() as patch:
        node = Node(directory, parallel, patch)
        for uid in [HOSTILE] * hostile + list(range(FIRST, FIRST + USERS)):
            node.ask(uid)
            requests.start_due(node._queue)
        node.run()
    ends = sorted(wait for uid, own in node.waits.items() if uid != HOSTILE for wait in own)
    assert len(ends) == USERS * MOST_PER_USER
    firsts = [min(own) for uid, own in node.waits.items() if uid != HOSTILE]
    return Waits(max(firsts), ends[len(ends) // 2], ends[-1])


@pytest.mark.sweep
@pytest.mark.threat(38)
@pytest.mark.parametrize("parallel", [1, 2, 4])
def test_eight_users_one_of_them_hostile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, parallel: int) -> None:
    """Sixteen images each. Beside the hostile one at least one import of the others runs at any time."""
    alone = waits(tmp_path / "alone", parallel, monkeypatch, hostile=False)
    beside = waits(tmp_path / "beside", parallel, monkeypatch, hostile=True)
    logging.getLogger(__name__).info(
        "images.parallel %d: alone %s, beside the hostile user %s", parallel, alone, beside
    )
    assert beside.first <= USERS * IMPORT_S + 1
    assert beside.last <= USERS * MOST_PER_USER * IMPORT_S + 1


class Asked(NamedTuple):
    """An image that somebody wants."""

    reference: str
    uid: int


class RealNode:
    """A node's own queue and imports; how long each lasted, from its request."""

    def __init__(self, site: Site) -> None:
        self._queue = Queue(
            str(site.var / "n1" / "imports"), f"{site.cluster.prefix}/libexec/warmstart/import", 2, DEADLINE_S
        )
        self._since: dict[str, tuple[Asked, float]] = {}
        self.waits: dict[Asked, float] = {}

    def run(self, asked: Sequence[Asked]) -> None:
        """Ask for images, as many of each user at a time as it may, until all are done but the hostile one's."""
        left = list(asked)
        while any(one.uid != HOSTILE for one in left) or any(one.uid != HOSTILE for one, _ in self._since.values()):
            for one in list(left):
                if sum(other.uid == one.uid for other, _ in self._since.values()) < MOST_PER_USER:
                    self._ask(one)
                    left.remove(one)
            requests.start_due(self._queue)
            time.sleep(0.05)
            for key in self._since.keys() - set(requests.keys(self._queue.directory)):
                one, since = self._since.pop(key)
                self.waits[one] = time.monotonic() - since
        for key in self._since:
            requests.cancel(self._queue.directory, key)

    def _ask(self, one: Asked) -> None:
        kind = f"{os.uname().machine}.{choice.recipe('oci')}"
        request = ImportRequest(
            one.reference, kind, "", f"u{one.uid}", one.uid, "", "c", "n1", 1, "r", time.time()
        )  # fmt: skip
        assert requests.submit(self._queue, request) == ""
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
    lines = []
    with serving() as registry, slowed(registry.url, 100) as slow:
        site.write_policy(registry=f'{registry.url}", "{slow}', rules=f"{RULES}")
        policy = site.etc / "policy.yaml"
        policy.write_text(policy.read_text().replace("wait: 60s", "max_size: 256MiB\n  max_files: 20000"))
        for hook in ("prolog", "epilog"):  # only a node that has run one has a queue
            assert site.run_hook(hook, site.variables(7400)).returncode == 0
        made = hostile_images(registry, tmp_path)
        hostile = [Asked(f"{registry.url}/{name}", HOSTILE) for name in made.values()]
        hostile.append(Asked(f"{slow}/slow/1@{registry.add_image([layer('f', 1 << 20)], 'slow')}", HOSTILE))
        for beside in (False, True):
            honest = [
                Asked(f"{registry.url}/u{uid}/{number}@{registry.add_image([layer('f', 1 << 16)], '1')}", uid)
                for uid in range(FIRST, FIRST + USERS)
                for number in range(MOST_PER_USER)
            ]
            node = RealNode(site)
            node.run([*(hostile if beside else []), *honest])
            waits = sorted(node.waits[one] for one in honest)
            first = max(min(node.waits[one] for one in honest if one.uid == uid) for uid in {one.uid for one in honest})
            done = [one for one in hostile if one in node.waits]
            what = f"beside the hostile user ({len(done)} of its {len(hostile)} images are over)" if beside else "alone"
            lines.append(f"| {what} | {first:.0f} s | {waits[len(waits) // 2]:.0f} s | {waits[-1]:.0f} s |")
            assert len(site.audit("--event", "image.imported")) >= len(honest) * (1 + beside)
            site.wait_imports(60)
            site.forget_imports()
    write_fragment(
        "cold-4-hostile.md",
        f"Seven users want {MOST_PER_USER} small images each on one node (`images.parallel: 2`), alone and beside a "
        f"user who has asked first for {len(hostile)} hostile ones: every kind of row 45 of the threats, and one of a "
        "registry that trickles. Seconds until an image is there:\n\n"
        "| | the longest wait for a user's first image | the median of all | the last |\n|---|---|---|---|\n"
        + "\n".join(lines)
        + "\n",
    )
