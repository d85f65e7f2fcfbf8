"""The cluster fixture itself, with stand-ins for the hooks: what the other tests rely on."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.cluster import mounts, teardown
from tests.cluster.accounts import ALICE, BOB, STORE
from tests.cluster.cluster import Cluster, NodeState
from tests.cluster.installation import write_hook
from tests.cluster.processes import run_as, wait_until
from tests.cluster.registry import Registry, build_image

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="module")
def bare(capable_host: None) -> Iterator[Cluster]:
    """Return a cluster with hooks that only record who ran them."""
    with Cluster() as cluster:
        marks = cluster.base / "marks"
        marks.mkdir()
        marks.chmod(0o1777)
        who = f'echo "$(/usr/bin/id -u) $SLURM_JOB_ID $SLURMD_NODENAME" >> {marks}'
        for name in ("prolog", "epilog", "task-prolog"):
            write_hook(cluster.prefix, name, f"{who}/{name}.$SLURM_JOB_ID")
        yield cluster


def marks(cluster: Cluster, hook: str, job_id: int) -> list[str]:
    """Return who ran the stand-in for `hook`: uid, job id, node."""
    return sorted((cluster.base / "marks" / f"{hook}.{job_id}").read_text().splitlines())


@pytest.mark.parametrize("user", [ALICE, BOB])
def test_a_job_of_each_user_runs_on_each_node_with_its_own_uid(bare: Cluster, user: str) -> None:
    """Four jobs at once, one for each node, print the user's uid and that node's name."""
    script = "#!/bin/sh\nid -u; echo $SLURMD_NODENAME\n"
    jobs = {node: bare.submit(script, user, f"--nodelist={node}") for node in bare.nodes}
    for node, job_id in jobs.items():
        done = bare.wait(job_id)
        assert (done.state, done.exit_code, done.nodes) == ("COMPLETED", 0, (node,))
        assert done.output.split() == [str(bare.account(user).uid), node]


def test_a_job_spans_two_nodes_with_hooks_on_both(bare: Cluster) -> None:
    """Prolog and epilog run as root on both nodes, the task prolog as the user for each task."""
    job_id = bare.submit("#!/bin/sh\nsrun id -u\n", ALICE, "--nodes=2", "--partition=ci")
    done = bare.wait(job_id)
    uid = bare.account(ALICE).uid
    assert done.output.split() == [str(uid)] * 2
    by_root = [f"0 {job_id} {node}" for node in done.nodes]
    assert len(by_root) == 2
    assert marks(bare, "prolog", job_id) == by_root
    assert marks(bare, "epilog", job_id) == by_root
    by_user = [f"{uid} {job_id} {node}" for node in done.nodes]
    # Once for the batch script on the head node, once for srun's task on each.
    assert marks(bare, "task-prolog", job_id) == sorted([by_user[0], *by_user])


def test_several_jobs_share_a_node(bare: Cluster) -> None:
    """Four jobs of two users run on one node at the same time: each waits for all the others."""
    meeting = bare.base / "marks" / "meeting"
    meeting.mkdir()
    meeting.chmod(0o1777)
    script = (
        f'#!/bin/sh\ntouch {meeting}/$SLURM_JOB_ID\nwhile [ "$(ls {meeting} | wc -l)" -lt 4 ]; do sleep 0.1; done\n'
    )
    jobs = [bare.submit(script, user, "--nodelist=n1") for user in (ALICE, BOB) * 2]
    assert {bare.wait(job_id).state for job_id in jobs} == {"COMPLETED"}


def test_srun_works_without_a_batch_script(bare: Cluster) -> None:
    """An allocation by srun itself waits for the prolog and runs as the user."""
    done = bare.run(["srun", "--nodelist=n3", "id", "-un"], BOB)
    assert (done.returncode, done.stdout.split()) == (0, [BOB])


def test_a_failing_job_reports_its_exit_code(bare: Cluster) -> None:
    """The exit code is reported besides the state, and no node drains."""
    done = bare.wait(bare.submit("#!/bin/sh\necho no >&2; exit 3\n", ALICE))
    assert (done.state, done.exit_code, done.output) == ("FAILED", 3, "no\n")
    assert bare.drained() == []


def test_a_cancelled_job_leaves_an_idle_cluster(bare: Cluster) -> None:
    """A running job is cancelled, its epilog runs, and nothing of it remains."""
    job_id = bare.submit("#!/bin/sh\nexec sleep 600\n", ALICE, "--nodelist=n4")
    bare.wait_for(job_id, {"RUNNING"})
    bare.cancel(job_id)
    assert bare.wait(job_id).state == "CANCELLED"
    bare.wait_idle()
    assert marks(bare, "epilog", job_id) == [f"0 {job_id} n4"]


def test_a_requeued_job_is_seen_to_wait_again(bare: Cluster) -> None:
    """A requeued job is pending with one restart, after the epilog of its first run."""
    job_id = bare.submit("#!/bin/sh\nexec sleep 600\n", ALICE, "--nodelist=n4", "--requeue")
    bare.wait_for(job_id, {"RUNNING"})
    bare.requeue(job_id)
    assert bare.wait_for(job_id, {"PENDING"}).restarts == 1
    bare.cancel(job_id)
    bare.wait_idle()


def test_a_failing_prolog_drains_the_node_until_it_is_resumed(bare: Cluster) -> None:
    """The node has a reason, the job is requeued and held, resume restores the node."""
    hook = bare.prefix / "libexec" / "warmstart" / "prolog"
    working = hook.read_text().partition("\n")[2]
    write_hook(bare.prefix, "prolog", "exit 1")
    try:
        job_id = bare.submit("#!/bin/sh\ntrue\n", ALICE, "--nodelist=n2")
        wait_until("n2 to drain", lambda: bare.node_states()["n2"].state == "drained", 30)
        assert bare.drained() == ["n2"]
        assert bare.node_states()["n2"] == NodeState("drained", "Prolog error")
        assert bare.wait_for(job_id, {"PENDING"}).reason == "launch_failed_requeued_held"
    finally:
        write_hook(bare.prefix, "prolog", working)
    bare.cancel(job_id)
    bare.resume("n2")
    assert bare.drained() == []
    assert bare.wait(bare.submit("#!/bin/sh\ntrue\n", ALICE, "-w", "n2")).state == "COMPLETED"


def test_a_slurmd_can_be_killed_and_started_again(bare: Cluster) -> None:
    """A node whose slurmd was killed takes jobs again once a new one listens."""
    bare.kill_slurmd("n3")
    bare.start_slurmd("n3")
    assert bare.wait(bare.submit("#!/bin/sh\ntrue\n", BOB, "-w", "n3")).state == "COMPLETED"
    assert bare.slurmd_log("n3").count("slurmd version") == 2


def test_job_users_can_run_the_interpreter_of_the_tests(bare: Cluster) -> None:
    """A job imports a package that only the virtual environment has."""
    script = f"#!/bin/sh\n{bare.python} -c 'import pytest; print(pytest.__name__)'\n"
    assert bare.wait(bare.submit(script, ALICE)).output == "pytest\n"


def test_slurmctld_is_not_root(bare: Cluster) -> None:
    """The controller runs as SlurmUser, as it does on real sites."""
    assert "SlurmUser               = slurm(" in bare.admin("scontrol", "show", "config")
    log = bare.base / "log" / "slurmctld.log"
    assert log.owner() == "slurm"


def test_the_recommended_settings_are_in_force(bare: Cluster) -> None:
    """The daemons use the settings of packaging/slurm/warmstart.conf."""
    rows = bare.admin("scontrol", "show", "config").splitlines()
    pairs = (row.partition("=") for row in rows if "=" in row)
    settings = {key.strip().removesuffix("[0]"): value.strip() for key, _, value in pairs}  # 24.05: Prolog[0]
    hooks = bare.prefix / "libexec" / "warmstart"
    assert settings["Prolog"] == str(hooks / "prolog")
    assert settings["Epilog"] == str(hooks / "epilog")
    assert settings["TaskProlog"] == str(hooks / "task-prolog")
    assert settings["PrologFlags"] == "Alloc,DeferBatch"
    assert settings["PrologEpilogTimeout"] == "280"
    assert settings["BatchStartTimeout"] == "360 sec"


def test_a_pushed_image_can_be_inspected(bare: Cluster, tmp_path: Path) -> None:
    """The registry serves an image of one layer under the digest that the push returned."""
    layout = build_image(tmp_path / "image", {"/etc/greeting": "hello\n"})
    with Registry(bare.base) as registry:
        digest = registry.push(layout, "latest", "team/small:1")
        done = subprocess.run(
            ["skopeo", "inspect", "--tls-verify=false", "--format={{.Digest}} {{len .Layers}}",
             f"docker://{registry.url}/team/small:1"],
            check=True, capture_output=True, text=True,
        )  # fmt: skip
        assert done.stdout.split() == [digest, "1"]
        assert registry.requests("GET", "team/small/manifests/") > 0


def test_a_squashed_store_serves_its_owner_and_refuses_root(bare: Cluster) -> None:
    """The owner writes, links and reads through the mount; root gets EACCES on everything."""
    owner = bare.account(STORE)
    source = bare.base / "backing"
    source.mkdir()
    os.chown(source, owner.uid, owner.gid)
    with mounts.squashed(bare.base, source, bare.base / "shared", owner) as store:
        script = f"cd {store} && echo whole > .new && ln .new final && rm .new && cat final"
        assert run_as(owner, ["sh", "-c", script]).stdout == "whole\n"
        with pytest.raises(PermissionError):
            os.listdir(store)
        with pytest.raises(PermissionError):
            (store / "final").read_text()
    assert (source / "final").read_text() == "whole\n"
    assert teardown.mounts_below(bare.base) == []


def test_a_small_tmpfs_is_full_and_a_read_only_tree_refuses_root(bare: Cluster) -> None:
    """ENOSPC and EROFS come from the kernel, not from a mock."""
    with mounts.tmpfs(bare.base / "small", size="64k") as small:
        with pytest.raises(OSError, match="No space left"):
            (small / "big").write_bytes(b"x" * 100_000)
        with mounts.read_only(small), pytest.raises(OSError, match="Read-only file system"):
            (small / "new").touch()
        (small / "big").unlink()
        (small / "new").touch()
    assert teardown.mounts_below(bare.base) == []


_REPOSITORY = Path(__file__).resolve().parents[2]
_OWNER = """
import sys
from tests.cluster.cluster import Cluster
with Cluster() as cluster:
    job_id = cluster.submit("#!/bin/sh\\nexec sleep 600\\n", "ws-alice")
    print(cluster.base, flush=True)
    sys.stdin.read()
"""


def test_a_killed_owner_leaves_nothing_behind(bare: Cluster) -> None:
    """SIGKILL of the process that owns a second cluster: daemons, mounts and directory are removed."""
    owner = subprocess.Popen(
        [sys.executable, "-c", _OWNER],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env={"PYTHONPATH": str(_REPOSITORY)},
    )  # fmt: skip
    with owner:
        assert owner.stdout is not None
        base = owner.stdout.readline().strip()
        assert base.startswith("/var/tmp/warmstart-")
        assert daemons_of(base)
        owner.send_signal(signal.SIGKILL)
    wait_until("the watchdog", lambda: not os.path.exists(base), 30)
    assert daemons_of(base) == []
    assert bare.wait(bare.submit("#!/bin/sh\ntrue\n", ALICE)).state == "COMPLETED"


def daemons_of(base: str) -> list[str]:
    """Return the command lines of live processes that name a cluster's directory."""
    listing = subprocess.run(["ps", "-eo", "args"], check=True, capture_output=True, text=True)
    return [line for line in listing.stdout.splitlines() if f"{base}/" in line]
