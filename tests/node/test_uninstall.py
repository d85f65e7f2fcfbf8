"""`make uninstall` removes programs and mounts; policy and state stay."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.lib import command_line
from tests.lib.installation import write_policy
from tests.lib.processes import wait_until
from tests.lib.runs import a_run
from warmstart.ending import waiting
from warmstart.ending.waiting import ENDINGS
from warmstart.paths import Installation
from warmstart.queue import Queue

pytestmark = pytest.mark.usefixtures("capable_host")

REPOSITORY = Path(__file__).parents[2]
HOOK = REPOSITORY / "packaging/libexec/hook.in"
PROGRAMS = (
    "bin/warmstart",
    "lib/tmpfiles.d/warmstart.conf",
    "lib/warmstart/python",
    "libexec/warmstart/background",
    "share/warmstart/site.yaml",
)
HOOKS = ("epilog", "job-container", "prolog")  # what slurm.conf and job_container.conf name
KEPT = ("etc/warmstart/policy.yaml", "var/lib/warmstart/policy.json", "var/lib/warmstart/n1/maintained")


@pytest.fixture
def prefix(tmp_path: Path) -> Iterator[Path]:
    """Return a prefix as an installation leaves it after a job: one copy of a bundle is mounted."""
    for name in (*PROGRAMS, *KEPT, "bin/another", "lib/another"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("x")
    for name in HOOKS:
        shutil.copy(HOOK, tmp_path / "libexec/warmstart" / name)
    state = tmp_path / "var/lib/warmstart/n1"
    copy, layer = state / "bundles/aa.sqsh", state / "layers/aa"
    copy.parent.mkdir()
    layer.mkdir(parents=True)
    subprocess.run(["/usr/bin/mksquashfs", tmp_path / "etc", copy, "-quiet", "-no-progress"], check=True)
    subprocess.run(["/bin/mount", "-o", "loop,ro", copy, layer], check=True)
    stage = state / "work/stage/lib"
    stage.mkdir(parents=True)
    (stage / "half").write_text("of what was being made")
    yield tmp_path
    if os.path.ismount(layer):
        subprocess.run(["/bin/umount", layer], check=True)


def uninstall(prefix: Path) -> str:
    command = ["/usr/bin/make", "-s", "uninstall", f"PREFIX={prefix}"]
    return subprocess.run(command, check=True, capture_output=True, text=True, cwd=REPOSITORY).stdout


def test_what_jobs_left_goes_before_the_programs(base: Path, install: Callable[[Path], None]) -> None:
    prefix, workspace = base / "prefix", base / "workspace"
    install(prefix)
    policy = command_line.POLICY.replace("/var/tmp/w,", f"{workspace},").replace("/var/log/w", f"{base}/log")
    write_policy(prefix, policy)
    run = a_run(workspace=str(workspace), uid=64201)
    tree = workspace / run.going
    (tree / "tmp/deep").mkdir(parents=True)
    (tree / "tmp/deep/file").write_text("x")
    paths = Installation(str(prefix)).node("n1")
    os.makedirs(paths.state)
    queue = Queue(paths, ENDINGS)
    queue.hasten(waiting.leave(queue, run, is_done=True))
    (prefix / "etc/warmstart/off").touch()
    uninstall(prefix)
    assert os.listdir(workspace) == []
    assert Queue(paths, ENDINGS).all() == []
    assert not (prefix / "libexec/warmstart/background").exists()


def test_what_is_installed_again_meanwhile_stays(prefix: Path) -> None:
    lib, libexec = prefix / "lib/warmstart", prefix / "libexec/warmstart"
    var, runtime = prefix / "var/lib/warmstart", prefix / "run/warmstart"
    run = runtime / "n1/queue/endings/0,0,0,7"
    run.parent.mkdir(parents=True)
    run.touch()
    (libexec / "background").write_text(f"#!/bin/sh\nrm {lib}/leave {run}\n")
    (libexec / "background").chmod(0o755)
    (lib / "leave").write_bytes((REPOSITORY / "packaging/release").read_bytes())
    (lib / "leave").chmod(0o755)
    subprocess.run([lib / "leave", "leave", lib, libexec, var, runtime], check=True)
    assert not run.exists()
    assert (lib / "python").exists()
    assert (libexec / "prolog").read_bytes() == HOOK.read_bytes()


def test_what_goes_on_after_the_last_epilog_outlives_it(tmp_path: Path) -> None:
    """Slurm kills an epilog's process group when it has ended. `setsid -f` ends before its child has left that."""
    lib, gone = tmp_path / "lib/warmstart", tmp_path / "gone"
    filled = {"PYTHON": "/bin/true", "PREFIX": str(tmp_path), "VAR": "/var", "RUN": "/run", "HOOK": "entry.epilog"}
    text = HOOK.read_text()
    for name, value in filled.items():
        text = text.replace(f"@{name}@", value)
    slow = 'shift; (sleep 0.5; exec /usr/bin/setsid "$@") &'
    programs = {tmp_path / "epilog": text, lib / "leave": f"touch {gone}", tmp_path / "bin/setsid": slow}
    for path, body in {**programs, lib / "python/warmstart/start.py": ""}.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(body if body.startswith("#!") else f"#!/bin/sh\n{body}\n")
        path.chmod(0o755)
    search = f"{tmp_path}/bin:/usr/bin:/bin"
    epilog = subprocess.Popen([tmp_path / "epilog"], env={"PATH": search}, start_new_session=True)
    assert epilog.wait() == 0
    with suppress(ProcessLookupError):  # nothing of it is left
        os.killpg(epilog.pid, signal.SIGKILL)
    wait_until("the end of the programs", gone.exists, 10)


def test_the_programs_go_and_nothing_stays_mounted(prefix: Path) -> None:
    said = uninstall(prefix)
    assert [name for name in PROGRAMS if (prefix / name).exists()] == []
    assert all((prefix / name).exists() for name in (*KEPT, "bin/another", "lib/another"))
    assert not os.path.ismount(prefix / "var/lib/warmstart/n1/layers/aa")
    assert not (prefix / "var/lib/warmstart/n1/work").exists()
    assert f"kept the policy in {prefix}/etc/warmstart and the state in {prefix}/var/lib/warmstart" in said
    assert sorted(os.listdir(prefix / "libexec/warmstart")) == list(HOOKS)
    for hook in HOOKS:
        assert subprocess.run([prefix / "libexec/warmstart" / hook], check=True, capture_output=True).stdout == b""
    assert uninstall(prefix) == said
