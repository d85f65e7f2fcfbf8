"""Requests for background imports: one for each image and user, which goes when it is done or of no use."""

from __future__ import annotations

import os
import time
from itertools import count
from pathlib import Path

import pytest

from tests.lib.faults import dies
from warmstart.host import detached
from warmstart.images.imports import requests
from warmstart.images.imports.requests import IMPORTS, ImportRequest
from warmstart.images.store.layout import IMPORT_S
from warmstart.images.store.published import RememberedFailure
from warmstart.paths import NodePaths
from warmstart.queue import Item, Queue, is_at_work

ASKED = ImportRequest(
    reference="reg.io/a:1", kind="x86_64.oci1", private="", user="alice", uid=2001,
    cluster="c", job_id=7, asked=0.0,
)  # fmt: skip
FAILURE = RememberedFailure("registry-unreachable", {}, "away")


@pytest.fixture
def paths(tmp_path: Path) -> NodePaths:
    """Return the directories of a node that has nothing to import."""
    (tmp_path / "n1").mkdir()
    return NodePaths(str(tmp_path / "n1"), str(tmp_path / "n1"), "/nowhere")


def asked_for(name: str, uid: int = 2001, ago_s: float = 0.0) -> ImportRequest:
    return ASKED._replace(reference=f"reg.io/{name}:1", uid=uid, asked=time.time() - ago_s)


def asked(paths: NodePaths) -> list[ImportRequest]:
    return [request for _, request in requests.waiting(paths)]


@pytest.mark.threat(39)
def test_a_request_is_roots_alone_and_written_once(paths: NodePaths) -> None:
    request = asked_for("a")
    assert requests.submit(paths, request) == ""
    assert requests.submit(paths, request._replace(job_id=8)) == ""
    assert asked(paths) == [request]
    (path,) = Path(paths.queue, IMPORTS.name).iterdir()
    modes = [each.stat().st_mode & 0o777 for each in (path, path.parent, path.parent.parent)]
    assert modes == [0o600, 0o700, 0o700]


@pytest.mark.threat(38)
def test_one_user_has_a_bounded_number(paths: NodePaths) -> None:
    for number in range(IMPORTS.most):
        assert requests.submit(paths, asked_for(f"a{number}")) == ""
    assert requests.submit(paths, asked_for("more")) == f"{IMPORTS.most} imports of user alice wait on node n1 already"
    assert requests.submit(paths, asked_for("a0")) == requests.submit(paths, asked_for("a0", uid=2002)) == ""


def test_a_failed_import_may_be_tried_at_once_and_one_that_died_waits(paths: NodePaths) -> None:
    request, queue = asked_for("a"), Queue(paths, IMPORTS)
    requests.submit(paths, request)
    assert queue.begin(queue.all()[0])
    requests.submit(paths, request)
    assert queue.due() == []
    requests.remember_failure(paths, request.image, FAILURE)
    requests.submit(paths, request)
    (again,) = queue.due()
    assert again.attempts == 1
    queue.begin(again)
    note = Path(paths.imports, f"{request.image}.failed")
    note.write_text(note.read_text().replace('"at": ', '"at": 1.0, "x": '))  # it is older than the attempt
    requests.submit(paths, request)
    assert queue.due() == []


@pytest.mark.parametrize("content", ["", "{"])
def test_a_request_whose_time_is_over_is_made_anew(paths: NodePaths, content: str) -> None:
    old, new, queue = asked_for("a", ago_s=IMPORT_S + 1), asked_for("a"), Queue(paths, IMPORTS)
    queue.put(Item("2001", int(old.asked), 3, old.key), old)
    if content:
        Path(queue.directory, queue.all()[0].name).write_text(content)
    assert requests.submit(paths, new) == ""
    assert asked(paths) == [new]
    assert queue.all()[0].attempts == 0


def test_notes_of_failures_go(paths: NodePaths) -> None:
    request = asked_for("a")
    requests.submit(paths, request)
    requests.remember_failure(paths, request.image, FAILURE)
    left = Path(paths.imports, "slot-0")
    left.touch()
    requests.forget_failures(paths, 60)
    assert requests.last_failure(paths, request.image) == requests.failures(paths)[0]
    for path in Path(paths.imports).iterdir():
        os.utime(path, (0, 0))
    requests.forget_failures(paths, 60)
    assert (requests.failures(paths), left.exists(), asked(paths)) == ([], False, [request])


def test_a_hook_that_dies_at_any_point(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[str] = []
    monkeypatch.setattr(detached, "start", lambda argv, unit: started.append(f"{' '.join(argv)} {unit}"))
    for turn in count(1):
        root = tmp_path / str(turn)
        root.mkdir()
        paths, request = NodePaths(str(root), str(root), "/nowhere"), asked_for("a")

        def ask(paths: NodePaths = paths, request: ImportRequest = request) -> None:
            requests.submit(paths, request)
            Queue(paths, IMPORTS).start_due()

        died = dies(ask, turn, root)
        ask()
        assert started == [f"/nowhere/background imports {turn} warmstart-import@{turn}.service"]
        assert (asked(paths), is_at_work(paths, IMPORTS.name)) == ([request], False)
        started.clear()
        if not died:
            break
    assert turn > 5
