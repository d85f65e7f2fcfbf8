"""What users can do at the socket where steps ask for images, as the jobs of two of them in a cluster."""

from __future__ import annotations

import array
import json
import os
import shutil
import socket
import subprocess
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

from tests.lib.accounts import ALICE, BOB
from tests.lib.privileges import drop_to
from tests.lib.processes import wait_until
from tests.lib.registry import Registry
from tests.lib.site import RULES, Site
from tests.lib.wings import step_images
from tests.lib.wings.step_images.steps import answering, naming, socket_of
from warmstart.wings.step_images import server
from warmstart.wings.step_images.asking import HEARD

pytestmark = pytest.mark.threat(49)


def answer_in_a_step(site: Site, user: str, text: str, *before: str) -> list[str]:
    """Send a text from a step of a user's job; return the answer, [] for none. `before`: words before the client's."""
    client = site.cluster.base / "step_client.py"
    shutil.copy(Path(step_images.__file__).with_name("step_client.py"), client)
    argv = ["srun", "--nodelist=n1", *before, "/usr/bin/python3", str(client), str(socket_of(site)), text]
    done = site.cluster.run(argv, user)
    assert done.returncode == 0, done.stderr
    return list(json.loads(done.stdout)) if done.stdout else []


def connected(site: Site) -> socket.socket:
    line = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    line.settimeout(30)
    line.connect(str(socket_of(site)))
    return line


def as_user(site: Site, user: str, work: Callable[[], bool]) -> bool:
    """Run a function in a process of a user's, outside of any job; return what it returns."""
    account, pid = site.cluster.account(user), os.fork()
    if not pid:
        status = 2
        try:
            drop_to(account.uid, account.gid)
            status = 0 if work() else 1
        finally:
            os._exit(status)
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    assert status < 2
    return status == 0


def test_root_finds_out_whose_step_it_is(asked: Site, fresh_image: Callable[[], str]) -> None:
    """Whatever job the environment of the step names, and whatever stands in the line behind the image."""
    site, image = asked, fresh_image()
    victim = site.cluster.submit("#!/bin/sh\nsleep 60\n", ALICE, "--nodelist=n1")
    wait_until("alice's job", lambda: site.cluster.job(victim).state == "RUNNING", 60)
    try:
        forged = ("env", f"SLURM_JOB_ID={victim}", f"SLURM_JOBID={victim}")
        said = answer_in_a_step(site, BOB, f"{image}\\n", *forged)
        assert said[0] == "there"
        assert answer_in_a_step(site, BOB, f"{image} {victim}\\n", *forged)[0] == "there"  # no nodes of the job's
    finally:
        site.cluster.admin("scancel", str(victim))
    own = [(found["user"], found["job_id"] == victim) for found in site.images() if found["image"] == image]
    assert own == [(BOB, False)] * 2


def test_what_is_in_no_step_is_told_nothing(asked: Site, registry: Registry, fresh_image: Callable[[], str]) -> None:
    """A login shell of a user, root, what has outlived its step: each may import for itself, and root does nothing."""
    site, image = asked, fresh_image()
    client = Path(step_images.__file__).with_name("step_client.py")
    shutil.copy(client, site.cluster.base)
    argv = ["/usr/bin/python3", f"{site.cluster.base}/step_client.py", str(socket_of(site)), f"{image}\\n"]
    assert json.loads(site.cluster.run(argv, BOB).stdout)[0] == "alone"
    assert json.loads(subprocess.run(argv, check=True, capture_output=True, text=True).stdout)[0] == "alone"
    said = site.cluster.account(BOB).home / "outlived"
    wait = f"while [ -e {said}.wait ]; do sleep 0.1; done"
    ask = f"{' '.join(argv[:3])} '{argv[3]}' >{said}.new && mv {said}.new {said}"
    script = f'#!/bin/sh\ntouch {said}.wait\nsetsid sh -c "{wait}; {ask}" >/dev/null 2>&1 &\n'
    site.finish(site.cluster.submit(script, BOB, "--nodelist=n1"))
    Path(f"{said}.wait").unlink()
    wait_until("its answer", said.exists, 30)
    assert json.loads(said.read_text())[0] == "alone"
    assert registry.requests("GET", image.partition("/")[2].partition(":")[0]) == 0


def test_descriptors_are_not_taken(asked: Site) -> None:
    """What is sent along is closed as it arrives, while the line is still open: nobody at the other end holds it."""
    with connected(asked) as line:
        read, write = os.pipe()
        line.sendmsg([b"x"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [write] * 100))])
        os.close(write)
        assert os.read(read, 1) == b""
        os.close(read)
        assert line.recv(1) == HEARD
        # The line is not read to its end yet.
        line.setblocking(False)
        with pytest.raises(BlockingIOError):
            line.recv(1)


def test_a_forbidden_image_is_refused_by_root(asked: Site, registry: Registry) -> None:
    """The importer asks the policy first, but whoever speaks with root need not be the importer."""
    said = answer_in_a_step(asked, BOB, "registry.invalid/a:1\\n")
    assert (said[0], said[2], said[3]) == ("failed", "user", "image-refused")
    assert not list(asked.runtime("").glob("*/*/queue/imports/*"))


def test_a_flood_of_one_user_stops_nobody(asked: Site, fresh_image: Callable[[], str]) -> None:
    """10,000 connections that say half a line and read nothing: others are served meanwhile, and few processes run."""
    site, image = asked, fresh_image()
    path, ready = str(socket_of(site)), site.cluster.account(BOB).home / "flooding"

    def flood() -> bool:
        with ExitStack() as open_lines:
            for number in range(10_000):
                line = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
                line.connect(path)
                with suppress(OSError):  # there was no place for it
                    line.send(b"x")
                if number < 500:
                    open_lines.enter_context(line)
                else:
                    line.close()
                if number == 500:
                    ready.touch()
        return True

    pid = os.fork()
    if not pid:
        try:
            os._exit(0 if as_user(site, BOB, flood) else 1)
        finally:
            os._exit(3)
    wait_until("the flood", ready.exists, 30)
    most = len(answering(site))
    job = site.cluster.submit(naming(site, image), ALICE, "--nodelist=n1")
    ended = site.cluster.wait(job)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert ended.output.strip().startswith(str(site.store)), ended
    assert 0 < most <= server.MOST_PER_USER
    site.finish(job)


@pytest.mark.parametrize("text", [b"", b"half a line"])
def test_a_user_of_many_uids_stops_nobody(asked: Site, fresh_image: Callable[[], str], text: bytes) -> None:
    """Subordinate uids (subuid(5)) outside of jobs, with more connections than there are places, always anew."""
    site, image = asked, fresh_image()
    path, stop, most = str(socket_of(site)), site.cluster.base / "stop", 0

    def hold() -> None:
        while not stop.exists():
            with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as line:
                line.settimeout(10)
                line.connect(path)
                line.sendall(text)
                while line.recv(8192):
                    pass

    pids = []
    for uid in range(1_000_000, 1_000_000 + 2 * server.MOST):
        pids.append(os.fork())
        if not pids[-1]:
            try:
                drop_to(uid, uid)
                hold()
            finally:
                os._exit(0)
    try:
        wait_until("a round of all", lambda: text == b"" or len(answering(site)) >= server.MOST_PER_USER, 30)
        job = site.cluster.submit(naming(site, image), ALICE, "--nodelist=n1")
        wait_until("alice's job", lambda: site.cluster.job(job).state not in ("PENDING", "RUNNING"), 40)
        most = len(answering(site))
    finally:
        stop.touch()
        for pid in pids:
            os.waitpid(pid, 0)
        stop.unlink()
    ended = site.finish(job)
    assert ended.output.strip().startswith(str(site.store)), ended
    assert most <= server.MOST_PER_USER + 1


@pytest.mark.parametrize("mode", ["observe", "off"])
def test_a_job_that_is_left_alone_gets_nothing_of_root(asked: Site, fresh_image: Callable[[], str], mode: str) -> None:
    site, image = asked, fresh_image()
    if mode == "observe":
        site.write_policy(f"mode: observe\n{RULES}")
    else:
        (site.etc / "off").touch()
    try:
        assert answer_in_a_step(site, BOB, f"{image}\\n")[0] == "alone"
    finally:
        (site.etc / "off").unlink(missing_ok=True)
    assert not list(site.runtime("").glob("*/*/queue/imports/*"))
