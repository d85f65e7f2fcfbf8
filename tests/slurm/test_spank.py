"""The SPANK plugin in a cluster: its options, and what tasks print. Its callbacks are in tests/node/test_spank.py."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.lib.accounts import ALICE

if TYPE_CHECKING:
    from tests.lib.site import Site


SHOW = 'echo "cache=$WARMSTART_CACHE inductor=$TORCHINDUCTOR_CACHE_DIR"'
SLIP = "--comment=warmstart fresh"
NOTICE = "warmstart: the comment has 'warmstart fresh' without a colon"
NUMBA = "rules:\n  - name: everyone\n    profiles: [numba]\n"


def test_without_the_plugin_the_batch_script_alone_prints_notices(site: Site) -> None:
    """Steps have a file, also those of a job that another job submits: its environment names the other's step."""
    step = site.cluster.run(
        ["srun", "--quiet", SLIP, "--ntasks=2", "sh", "-c", 'cat "$WARMSTART_NOTICES" >&2; echo ran'], ALICE
    )
    assert (step.stdout, step.stderr.count(NOTICE)) == ("ran\nran\n", 2)
    output = site.cluster.base / "nested"
    output.mkdir(mode=0o777)
    output.chmod(0o777)
    script = "v=$(srun --quiet echo ran); echo $v"
    nested = f"sbatch --wait --parsable \"{SLIP}\" --output={output}/out --wrap '{script}'"
    asked = site.cluster.run(["srun", "--quiet", "--overcommit", "--oversubscribe", "sh", "-c", nested], ALICE)
    assert asked.returncode == 0
    lines = (output / "out").read_text().splitlines()
    assert (lines[-1], len(lines), NOTICE in lines[0]) == ("ran", 2, True)


@pytest.mark.usefixtures("plugged")
@pytest.mark.parametrize("command", ["sbatch", "srun", "salloc"])
def test_commands_show_the_options_and_refuse_wrong_values(site: Site, command: str) -> None:
    shown = site.cluster.run([command, "--help"], ALICE).stdout
    options = ("--warm-image=REF", "--warm-profile=NAMES", "--warm-fresh", "--warm-refresh", "--no-warm")
    assert all(option in shown for option in options)
    what = "--wrap=true" if command == "sbatch" else "/bin/true"
    done = site.cluster.run([command, "--warm-profile=numba;id", what], ALICE)
    assert done.returncode != 0
    assert "the value of --warm-profile contains an invalid character" in done.stderr


@pytest.mark.usefixtures("plugged")
def test_options_reach_the_prolog(site: Site) -> None:
    site.write_policy(NUMBA)
    off = ("--no-warm", "--comment=Warmstart: off")
    wishes = ("", "--warm-profile=inductor", *off, "--warm-image=other.example.com/a:1")
    jobs = [site.cluster.submit(f"#!/bin/sh\n{SHOW}\n", ALICE, *filter(None, [wish])) for wish in wishes]
    outputs = [site.cluster.wait(job_id).output for job_id in jobs]
    # Without the profile the task prolog leaves Inductor's cache in /tmp.
    assert [("cache=/" in output, "inductor=/" in output.replace("=/tmp/", "=")) for output in outputs] == [
        (True, False),
        (True, True),
        (False, False),
        (False, False),
        (False, False),
    ]
    assert "other.example.com" in outputs[-1]


@pytest.mark.usefixtures("plugged")
def test_a_verdict_where_no_task_prolog_runs(site: Site) -> None:
    program = site.cluster.prefix / "libexec" / "warmstart" / "task-prolog"
    text = program.read_text()
    program.write_text("#!/bin/sh\n")
    refused = "--warm-image=other.example.com/a:1"
    try:
        batch = site.cluster.wait(site.cluster.submit("#!/bin/sh\necho ran\n", ALICE, refused))
        step = site.cluster.run(["srun", "--quiet", refused, "--ntasks=2", "echo", "ran"], ALICE)
        after = site.cluster.wait(site.cluster.submit("#!/bin/sh\necho ran\n", ALICE))
    finally:
        program.write_text(text)
    assert (batch.state, batch.exit_code, step.returncode) == ("FAILED", 1, 1)
    reason = "warmstart: image other.example.com/a:1 is refused"
    assert (batch.output.count(reason), step.stderr.count(reason)) == (1, 2)
    assert "ran" not in batch.output + step.stdout
    assert (after.state, after.output) == ("COMPLETED", "ran\n")


@pytest.mark.usefixtures("plugged")
def test_notices_are_on_stderr_once_for_each_step(site: Site) -> None:
    step = site.cluster.run(
        ["srun", "--quiet", SLIP, "--ntasks=2", "sh", "-c", 'cat "$WARMSTART_NOTICES" >&2; echo ran'], ALICE
    )
    assert (step.stdout, step.stderr.count(NOTICE)) == ("ran\nran\n", 3)
    batch = site.cluster.wait(site.cluster.submit("#!/bin/sh\nv=$(srun --quiet echo ran)\necho $v\n", ALICE, SLIP))
    lines = batch.output.splitlines()
    assert (lines[-1], batch.output.count(NOTICE), len(lines)) == ("ran", 2, 3)


@pytest.mark.usefixtures("plugged")
def test_a_job_from_a_host_without_the_plugin(site: Site) -> None:
    """That host lacks the options; the job runs and has its cache at the constant path."""
    site.write_policy(constant="spank")
    etc = site.cluster.base / "etc"
    (etc / "without.conf").write_text("")
    text = (etc / "slurm.conf").read_text().replace(str(etc / "plugstack.conf"), str(etc / "without.conf"))
    (etc / "submit.conf").write_text(text)
    elsewhere = {"SLURM_CONF": str(etc / "submit.conf")}
    refused = site.cluster.run(["sbatch", "--no-warm", "/bin/true"], ALICE, env=elsewhere)
    assert "unrecognized option" in refused.stderr
    job_id = site.cluster.submit(f"#!/bin/sh\n{SHOW}\n", ALICE, env=elsewhere)
    assert site.cluster.wait(job_id).output.startswith(f"cache={site.constant} ")
