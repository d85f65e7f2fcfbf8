"""Attempts, each in a process of its own: which begins next, how many at a time, and what ends one."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.lib.bundles import ASKER
from tests.lib.node import NODE, Node
from tests.lib.own_processes import KIND, OwnProcesses
from warmstart.entry import background
from warmstart.entry.background import make_attempts
from warmstart.images.imports import requests
from warmstart.images.imports.requests import ImportRequest
from warmstart.images.unpacks import UNPACKS, UnpackRequest
from warmstart.paths import NodePaths
from warmstart.queue import Item, Queue, at_work

LONG_S, SHORT_S = 7200.0, 60.0


class Wish(NamedTuple):
    """What is to be done."""

    text: str = ""


@pytest.fixture
def paths(tmp_path: Path) -> NodePaths:
    (tmp_path / "n1").mkdir()
    return NodePaths(str(tmp_path / "n1"), str(tmp_path / "n1"), "/nowhere")


def ask(node: OwnProcesses, *keys: str, ago_s: int = 0) -> None:
    """Ask for items, each of the owner that its key begins with, one a second."""
    for number, key in enumerate(keys):
        node.queue.put(Item(key[0], int(node.now) - ago_s + number, 0, key), Wish())


def all_short(_: Item) -> float:
    return SHORT_S


def begun(node: OwnProcesses) -> list[str]:
    return [item.key for item in node.begun]


@pytest.mark.threat(38)
def test_owners_take_turns(paths: NodePaths, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever asks for many lets those who come later go first with theirs; each owner's come in their order."""
    node = OwnProcesses(paths, all_short, monkeypatch)
    ask(node, "a0", "a1", "a2", "a3", "b0", "b1", "b2", "c0", ago_s=100)
    node.run()
    assert begun(node) == ["a0", "b0", "c0", "a1", "b1", "a2", "b2", "a3"]


@pytest.mark.threat(38)
def test_who_has_the_fewest_at_work_is_next(paths: NodePaths, monkeypatch: pytest.MonkeyPatch) -> None:
    node = OwnProcesses(paths, lambda e: LONG_S if e.owner == "a" else SHORT_S, monkeypatch, KIND._replace(parallel=3))
    ask(node, "a0", "a1", "a2", "a3", ago_s=100)
    ask(node, "b0", "b1")
    node.run()
    assert begun(node)[:4] == ["a0", "b0", "a1", "b1"]


@pytest.mark.threat(38)
def test_who_asks_for_one_after_the_other_has_no_more_turns(paths: NodePaths, monkeypatch: pytest.MonkeyPatch) -> None:
    node = OwnProcesses(paths, all_short, monkeypatch, KIND._replace(parallel=2))
    ask(node, *(f"{owner}{number}" for owner in "bcd" for number in range(3)), ago_s=50)
    ask(node, "a0")
    asked = iter(["a1", "a2"])

    def again() -> None:
        if not any(item.owner == "a" for item in node.queue.all()) and (key := next(asked, "")):
            ask(node, key)

    node.each = again
    node.run()
    order = [key[0] for key in begun(node)]
    assert all(sorted(order[turn : turn + 4]) == ["a", "b", "c", "d"] for turn in (0, 4, 8))


@pytest.mark.threat(38)
@pytest.mark.parametrize("most", [2, 3])
def test_no_owner_holds_the_last_place_while_another_one_waits(
    paths: NodePaths, monkeypatch: pytest.MonkeyPatch, most: int
) -> None:
    """Who comes first may have all; then one more begins for the others, and for nobody else."""
    node = OwnProcesses(
        paths, lambda e: LONG_S if e.owner == "m" else SHORT_S, monkeypatch, KIND._replace(parallel=most)
    )
    slow = [f"m{number}" for number in range(most + 2)]
    ask(node, *slow, ago_s=100)
    former = node.spawn
    seen: list[int] = []

    def spawn(program: str, argv: list[str], environ: object) -> int:
        pid = former(program, argv, environ)
        seen.append(len(node.ends))
        if len(node.begun) == most:
            ask(node, "a0", "b0")
        return pid

    monkeypatch.setattr(node.os, "posix_spawn", spawn)
    node.run()
    assert begun(node)[: most + 2] == [*slow[:most], "a0", "b0"]
    assert max(seen) == most + 1
    assert node.done["b0"] - node.done["a0"] == pytest.approx(SHORT_S)


@pytest.mark.threat(38)
def test_nobody_is_held_back_by_a_stranger_who_wants_the_same(
    paths: NodePaths, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where a user with many requests asks for all images of another one, too. One import is made of each."""
    node = OwnProcesses(paths, all_short, monkeypatch, requests.IMPORTS._replace(parallel=1))

    def asks(uid: int, *names: str) -> None:
        for name in names:
            request = ImportRequest(f"reg.io/{name}:1", "k", "", f"u{uid}", uid, "c", 7, node.now)
            assert requests.submit(paths, request) == ""
            images[request.image] = name
            node.now += 1

    images: dict[str, str] = {}
    asks(2001, *(f"m{number}" for number in range(4)))
    asks(2002, "b0", "b1")
    asks(2001, "b0", "b1")
    at_work: list[str] = []
    former = node.spawn

    def spawn(program: str, argv: list[str], environ: object) -> int:
        at_work.append(images[requests.image_of(argv[-1])])
        running = [requests.image_of(item.key) for _, item in node.ends.values()]
        assert requests.image_of(argv[-1]) not in running
        return former(program, argv, environ)

    monkeypatch.setattr(node.os, "posix_spawn", spawn)
    node.run()
    assert at_work[:4] == ["m0", "b0", "m1", "b1"]


def test_one_at_a_time_about_the_same(paths: NodePaths, monkeypatch: pytest.MonkeyPatch) -> None:
    node = OwnProcesses(paths, all_short, monkeypatch, KIND._replace(parallel=8))
    ask(node, "a.1", "a.2", "b.3", ago_s=9)
    node.run()
    assert begun(node) == ["a.1", "b.3", "a.2"]


def test_an_item_whose_process_dies_has_another_turn_later(paths: NodePaths, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also if it died before it counted the attempt; nobody else waits for that."""
    node = OwnProcesses(paths, all_short, monkeypatch, KIND._replace(parallel=2))
    ask(node, "a0", "b0")
    tries: list[float] = []

    def dies(program: str, argv: list[str], environ: object) -> int:
        if argv[-1] != "a0" or len(tries) == 2:
            return node.spawn(program, argv, environ)
        tries.append(node.now)
        node.ends[99] = node.now, Item("a", 0, 0, "none")
        return 99

    monkeypatch.setattr(node.os, "posix_spawn", dies)
    monkeypatch.setattr(node.time, "sleep", lambda _: setattr(node, "now", node.now + 1))
    node.run()
    assert sorted(begun(node)) == ["a0", "b0"]
    assert tries[1] - tries[0] >= node.queue.kind.backoff_s


def test_what_is_withdrawn_is_ended(paths: NodePaths, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing else is."""
    node = OwnProcesses(paths, lambda _: LONG_S, monkeypatch, KIND._replace(parallel=2))
    ask(node, "a0", "b0")
    start = node.now

    def sleep(_: float) -> None:
        node.now += SHORT_S
        if node.now - start > 3 * SHORT_S:
            node.queue.drop("a0")

    monkeypatch.setattr(node.time, "sleep", sleep)
    node.run()
    assert set(node.killed) == {"a0"}
    assert node.done["a0"] < node.done["b0"]


def test_nothing_begins_while_warmstart_is_off(paths: NodePaths, monkeypatch: pytest.MonkeyPatch) -> None:
    node = OwnProcesses(paths, all_short, monkeypatch)
    ask(node, "a0", "a1", ago_s=9)
    node.each = lambda: setattr(node.installation, "is_off", True)
    node.run()
    assert (list(node.done), [item.key for item in node.queue.all()]) == (["a0"], ["a1"])


def test_it_does_nothing_that_nobody_asked_for(node: Node, capsys: pytest.CaptureFixture[str]) -> None:
    """Nor anything while warmstart is off."""
    os.makedirs(node.paths.state, mode=0o700)
    queue, prefix = Queue(node.paths, UNPACKS), node.installation.prefix
    queue.add("1", "ab", UnpackRequest("reg.io/b:1", "b", "", ASKER))
    for arguments in (["all", NODE], [UNPACKS.name, "n2"], [UNPACKS.name, "../n1"]):
        assert background.main(prefix, arguments) == background.WRONG_USAGE
    assert "usage: background" in capsys.readouterr().err
    Path(node.installation.off_switch).touch()
    assert background.main(prefix, [UNPACKS.name, NODE]) == 0
    assert [item.attempts for item in queue.all()] == [0]


PROGRAM = """\
#!{python}
import os, signal, sys, time
with open("{log}", "a") as log:
    print(*sys.argv[1:], file=log)
    signal.signal(signal.SIGTERM, lambda *_: (print("ended", sys.argv[3], file=log), sys.exit()))
    log.flush()
    time.sleep(60)
"""


def test_real_processes(node: Node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A signal reaches each, and they may clean up; another process of the kind ends at once."""
    monkeypatch.setattr(background, "LOCK_S", 0.01)
    log, program = tmp_path / "log", Path(node.paths.background_program)
    program.parent.mkdir(parents=True)
    program.write_text(PROGRAM.format(python=sys.executable, log=log))
    program.chmod(0o755)
    os.makedirs(node.paths.runtime)
    kind = KIND._replace(parallel=2)
    queue = Queue(node.paths, kind)
    for key in ("a0", "b0", "c0"):
        queue.put(Item(key[0], int(time.time()), 0, key), Wish())
    with at_work(node.paths, kind.name):
        make_attempts(node.installation, NODE, kind)
    pid = os.fork()
    if not pid:
        try:
            make_attempts(node.installation, NODE, kind)
        finally:
            os._exit(0)
    until = time.monotonic() + 20
    while (not log.exists() or log.read_text().count("\n") < 2) and time.monotonic() < until:
        time.sleep(0.05)
    os.kill(pid, signal.SIGTERM)
    os.waitpid(pid, 0)
    said = log.read_text().splitlines()
    assert sorted(said[:2]) == [f"wishes {NODE} a0", f"wishes {NODE} b0"]
    assert sorted(said[2:]) == ["ended a0", "ended b0"]
