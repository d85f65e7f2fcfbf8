"""The answer to a step: whose step it is, what the policy says, and what goes wrong."""

from __future__ import annotations

import os
import pwd
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.lib.policy_site import a_rule, defaults
from tests.lib.runs import a_context, a_run
from warmstart import view
from warmstart.images.agreed import HeadImage
from warmstart.images.reference import parse
from warmstart.paths import Installation
from warmstart.policy.keys import Policy
from warmstart.run import state as runs
from warmstart.run.state import Run
from warmstart.steps.image import Options
from warmstart.store.barrier import Barrier
from warmstart.wings.step_images import answer
from warmstart.wings.step_images.answer import Asker, find_asker
from warmstart.wings.step_images.asking import LONGEST_LINE
from warmstart.wings.step_images.job import Daemon

UID = os.getuid()


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Installation:
    """Return an installation with two nodes, where every process is in a step of job 7."""
    monkeypatch.setattr(answer, "daemon_of", lambda _: Daemon(os.getpid(), 7))
    installation = Installation(str(tmp_path))
    for node in ("n1", "n2"):
        Path(installation.node(node).state).mkdir(parents=True)
    return installation


def recorded(here: Installation, node: str) -> Run:
    """Save a run of job 7 on a node."""
    run = a_run(node=node)
    state = here.node(node).state
    (Path(state) / "7").mkdir()
    runs.save(state, run)
    return run


def test_the_record_says_which_node(here: Installation) -> None:
    run = recorded(here, "n2")
    assert find_asker(here, 1, UID) == Asker("n2", 7, UID, run)


@pytest.mark.parametrize(("says", "node"), [("n2", "n2"), ("n3", "n1"), ("", "n1")])
def test_a_job_without_a_record_is_of_the_node_that_its_step_says(
    here: Installation, monkeypatch: pytest.MonkeyPatch, says: str, node: str
) -> None:
    """If this host has that node."""
    monkeypatch.setattr(answer, "claimed_node", lambda _: says)
    assert find_asker(here, 1, UID) == Asker(node, 7, UID, None)


@pytest.mark.threat(49)
def test_another_users_job_is_not_the_askers(here: Installation) -> None:
    recorded(here, "n1")
    assert find_asker(here, 1, UID + 1) is None


def test_a_damaged_record_is_nobodys(here: Installation) -> None:
    recorded(here, "n1")
    (Path(here.node("n1").state) / "7" / runs.NAME).write_text("{")
    assert find_asker(here, 1, UID) is None


def test_a_job_that_must_fail_is_nobodys(here: Installation) -> None:
    run = recorded(here, "n1")
    for name, found in ((view.NOTICE, Asker("n1", 7, UID, run)), (view.VERDICT, None)):
        Path(here.node("n1").view, "7").mkdir(parents=True, exist_ok=True)
        Path(here.node("n1").view, "7", name).write_text("warmstart: no\n")
        assert find_asker(here, 1, UID) == found


def test_what_is_in_no_step_is_nobodys(here: Installation, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answer, "daemon_of", lambda _: None)
    assert find_asker(here, 1, UID) is None
    monkeypatch.setattr(answer, "daemon_of", lambda _: Daemon(os.getpid(), 7))
    assert find_asker(Installation("/nonexistent"), 1, UID) is None


def granted(policy: Policy, run: Run | None) -> bool:
    """Return whether a step of job 7 is served."""
    return answer._granted(policy, Asker("n1", 7, UID, run)) is not None


def test_whom_the_prolog_left_alone_is_left_alone() -> None:
    """No rule matched, or --no-warm: the run has no workspace."""
    run, policy = a_run(workspace="/var/tmp/warmstart"), defaults()._replace(rules=(a_rule(),))
    assert granted(policy, run)
    assert not granted(policy, run._replace(workspace=""))


def test_a_job_without_a_record_has_what_is_granted_to_its_user(monkeypatch: pytest.MonkeyPatch) -> None:
    """Root knows neither partition nor account; where jobs may be observed, it does not know whether this one is."""
    account = pwd.struct_passwd(("alice", "x", UID or 64201, 100, "", "/", ""))
    monkeypatch.setattr(pwd, "getpwuid", lambda _: account)
    monkeypatch.setattr("warmstart.plan.groups", lambda _: ["staff"])
    bare = defaults()
    policy = bare._replace(limits=bare.limits._replace(min_uid=0))
    assert granted(policy._replace(rules=(a_rule(),)), None)
    assert not granted(policy, None)
    assert not granted(policy._replace(rules=(a_rule(),), mode="observe"), None)
    assert not granted(policy._replace(rules=(a_rule(), a_rule(mode="observe"))), None)


@pytest.mark.parametrize(
    ("path", "said"), [("{store}/images/abcd.x.sqsh", "sha256:abcd"), ("/run/copy.sqsh", ""), ("", "")]
)
@pytest.mark.parametrize("nodelist", ["", "n[1-2]"])
def test_an_image_stays_what_it_was_for_the_job(tmp_path: Path, path: str, said: str, nodelist: str) -> None:
    """For its prolog on this node, else for its first step in it on any: that one says so, if there are several."""
    context, name = a_context(tmp_path), "reg.example.com/a:1"
    images = {name: path.format(store=context.policy.paths.store)} if path else {}
    context = context._replace(run=context.run._replace(images=images, nodelist=nodelist))
    barrier = Barrier("", "", nodelist) if nodelist else None
    options = answer._options(context, parse(name), (), barrier)
    assert options.said == ({name: HeadImage(said)} if said else {})
    assert options.of_step is bool(nodelist or said)
    assert options.barrier is None or options.barrier.nodelist == (nodelist or "n1")
    by_digest = parse(f"reg.example.com/a@sha256:{'ab' * 32}")
    assert answer._options(context, by_digest, (), barrier) == Options((by_digest,))


def talk(here: Installation, text: bytes) -> bytes:
    """Say something on descriptor 0 of an answer in a forked process; return what it says."""
    ours, its = socket.socketpair()
    pid = os.fork()
    if not pid:
        try:
            ours.close()
            os.dup2(its.fileno(), 0)
            os._exit(answer.main(here))
        finally:
            os._exit(99)
    its.close()
    with ours:
        ours.settimeout(30)
        ours.sendall(text)
        ours.shutdown(socket.SHUT_WR)
        try:
            said = ours.recv(10_000)
        except ConnectionResetError:  # it has not read all
            said = b""
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    return said


@pytest.mark.threat(49)
@pytest.mark.parametrize("text", [b"", b"a:1", b"x" * (LONGEST_LINE + 1), b"x" * LONGEST_LINE + b"\n"])
def test_what_is_no_line_gets_no_answer(here: Installation, text: bytes) -> None:
    assert talk(here, text) == b""


@pytest.mark.parametrize(("break_it", "text"), [(True, b"a:1\n"), (False, b"a:1\nb:1\n")])
def test_a_bug_leaves_the_step_alone(
    here: Installation, monkeypatch: pytest.MonkeyPatch, break_it: bool, text: bytes
) -> None:
    """As without root; and a reference that is none is told so."""
    breaks: Callable[..., object] = lambda *_: 1 / 0  # noqa: E731
    if break_it:
        monkeypatch.setattr(answer, "_answer", breaks)
    else:
        monkeypatch.setattr(answer, "find_asker", lambda *_: Asker("n1", 7, UID, None))
        monkeypatch.setattr(answer, "ROOT", -1)
    said = talk(here, text)
    assert (b'["alone"' in said) if break_it else (b"image-reference-invalid" in said)
