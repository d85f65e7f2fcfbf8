"""What a job's user cannot reach: tests/unit/steps/test_environment.py tries the rest without root."""

from __future__ import annotations

import subprocess
from pathlib import Path

from tests.support.runs import a_context, a_record
from warmstart.steps import environment
from warmstart.steps.environment import Options

JOB = 64201
SCRIPT = Path(__file__).parents[3] / "packaging/libexec/task-prolog.in"


def test_a_closed_workspace_is_no_container(base: Path) -> None:
    """Nothing that leads there reaches the job, and the batch script says why; where it is open, all does."""
    made = a_context(base)
    record = a_record(workspace=f"{base}/workspace", uid=JOB, gid=JOB)
    run = Path(record.run_directory)
    for name in ("cache", "tmp"):
        (run / name).mkdir(parents=True)
    record = record._replace(cache=f"{run}/cache", environment={"TMPDIR": f"{run}/tmp"})
    environment.run(made._replace(record=record), Options({"A": f"{run}/cache/a", "B": "x"}, {}, ()))
    made.store.close()
    script = base / "task-prolog"
    script.write_text(SCRIPT.read_text().replace("@VAR@", str(base)))
    (base / "node").chmod(0o755)

    def printed() -> list[str]:
        batch = ["/bin/bash", "-c", f"/bin/sh {script}; :"]  # the name of the daemon, of a process that waits
        done = subprocess.run(
            ["slurmstepd: [7.batch]", *batch[1:]],
            executable=batch[0],
            env={"SLURMD_NODENAME": "node", "SLURM_JOB_ID": "7"},
            user=JOB,
            group=JOB,
            extra_groups=[],
            cwd="/",
            capture_output=True,
            text=True,
            check=True,
        )
        assert done.stderr == ""
        return [line for line in done.stdout.splitlines() if environment.OWN not in line]

    reached = [
        f"export A={run}/cache/a",
        "export B=x",
        f"export TMPDIR={run}/tmp",
        f"export WARMSTART_CACHE={run}/cache",
    ]
    assert printed() == reached
    (base / "workspace").chmod(0o700)
    *rest, told = printed()
    assert told.startswith(f"print warmstart: you cannot enter {base}/workspace: this job runs cold")
    assert rest == ["export B=x"]
    environment.run(
        made._replace(record=a_record(workspace=f"{base}/workspace", uid=JOB, gid=JOB)), Options({}, {}, ())
    )
    assert printed() == []  # no workspace was made, and the job was told why
