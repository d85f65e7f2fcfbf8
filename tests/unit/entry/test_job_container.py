"""The cache at the constant path, in the namespace that Slurm made for its job; nothing there fails the job."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.lib.node import Node
from tests.lib.runs import a_run
from warmstart.entry import job_container
from warmstart.errors import WarmstartError
from warmstart.host.deadline import Deadline
from warmstart.host.files import opened_dir
from warmstart.host.identity import Identity, WorkerSilent
from warmstart.paths import NOTHING, Shown
from warmstart.run import state as runs
from warmstart.run.shown import show

Call = tuple[str, str, int, list[Shown]]
CACHE = Shown("rw", "root", "cache", NOTHING, "/var/cache/warmstart", NOTHING)


@pytest.fixture
def shown(node: Node, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[Call]:
    """Give a job with a cache, and collect what would be mounted where."""
    node.write(node.policy._replace(constant_path="namespace"))
    node.environ(SLURM_NS="/run/ns")
    record = a_run(workspace=str(tmp_path / "w"), path="/var/cache/warmstart")
    save(node, record)
    os.makedirs(record.directory)
    show_in(record.directory, CACHE)
    calls: list[Call] = []

    def show(namespace: str, run: str, owner: Identity, items: list[Shown], deadline: Deadline) -> dict[str, str]:
        assert deadline.left() <= job_container.SECONDS
        calls.append((namespace, run, owner.uid, items))
        return {}

    monkeypatch.setattr(job_container, "show_in_namespace", show)
    return calls


def save(site: Node, record: runs.Run) -> None:
    os.makedirs(f"{site.paths.state}/7", mode=0o700, exist_ok=True)
    runs.save(site.paths.state, record)


def show_in(run: str, *items: Shown) -> None:
    """Write what steps of the prolog add to the run's list."""
    with opened_dir(run) as fd:
        for item in items:
            show(fd, item, os.getuid())


def test_what_the_run_shows_is_shown(
    node: Node, shown: list[Call], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    run = f"{tmp_path}/w/7.00000000"
    other = Shown("ro", "job", "mounted/other", "1 2 3", "/lustre/my env\udcff", "it is another one")
    show_in(run, other, Shown("ro", "root", "mounted/a1/tree", "1 2", NOTHING, NOTHING))  # in place of an image
    assert job_container.main(node.installation.prefix) == 0
    assert shown == [("/run/ns", run, os.getuid(), [CACHE, other])]
    monkeypatch.setattr(job_container, "show_in_namespace", lambda *_: {"/lustre/my env": "too many links"})
    assert job_container.main(node.installation.prefix) == 0
    (failure,) = node.failures()
    assert failure["code"] == "not-shown"
    assert "/lustre/my env in the job's namespace: too many links" in failure["reason"]


def test_a_list_of_another_form_is_no_crash(node: Node, shown: list[Call], tmp_path: Path) -> None:
    """Another release may have written it."""
    Path(f"{tmp_path}/w/7.00000000/shown").write_text("cache\n")
    assert job_container.main(node.installation.prefix) == 0
    (failure,) = node.failures()
    assert (shown, "another number of fields" in failure["reason"]) == ([], True)


@pytest.mark.parametrize("case", ["another policy", "no namespace", "no record", "another user", "no cache"])
def test_what_has_none_is_left_alone(node: Node, shown: list[Call], monkeypatch: pytest.MonkeyPatch, case: str) -> None:
    if case == "another policy":
        node.write(node.policy._replace(constant_path="link"))
    elif case == "no namespace":
        monkeypatch.delenv("SLURM_NS")
    elif case == "no record":
        runs.forget(node.paths.state, 7)
    elif case == "another user":
        save(node, a_run(uid=os.getuid() + 1, path="/c"))
    else:
        save(node, a_run(path=""))
    assert job_container.main(node.installation.prefix) == 0
    assert shown == []
    assert node.failures() == []


@pytest.mark.parametrize(
    ("error", "problem"),
    [
        (PermissionError(1, "others can write it"), "others can write it"),
        (WorkerSilent(what="show", problem="no answer"), "no answer"),
    ],
)
def test_a_mount_that_fails_is_told_and_fails_no_job(
    node: Node, shown: list[Call], monkeypatch: pytest.MonkeyPatch, error: OSError | WarmstartError,
    problem: str,
) -> None:  # fmt: skip
    """Any status but 0 would."""

    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr(job_container, "show_in_namespace", fail)
    assert job_container.main(node.installation.prefix) == 0
    (failure,) = node.failures()
    assert (failure["step"], failure["code"]) == ("job-container", "not-shown")
    assert problem in failure["reason"]
