"""A run that began with a wing ends without it: what it mounted and recorded goes with the run."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

from tests.lib.runs import a_context
from warmstart.ending.release import release
from warmstart.run import state as runs
from warmstart.steps import workspace
from warmstart.steps.workspace import Options

WING = "taken-off"
PLACES = ("mounted/whole", "mounted/whole/within", "cache/shown", "own")  # in the run's directory


def test_what_a_wing_mounted_goes_without_it(base: Path) -> None:
    context = a_context(base)
    run = context.run._replace(wings=[WING])
    runs.save(context.paths.state, run)
    workspace.run(context._replace(run=run), Options(()))
    source = base / "source"
    (source / "within").mkdir(parents=True)
    (source / "within" / "kept").write_text("x")
    for place in PLACES:
        target = Path(run.directory, place)
        target.mkdir(parents=True, exist_ok=True)
        subprocess.run(["/usr/bin/mount", "--bind", source, target], check=True)
    file = Path(context.paths.state, str(run.job_id), runs.NAME)
    file.write_text(json.dumps({**json.loads(file.read_text()), WING: {"shown": [*PLACES]}}))

    recorded = runs.load(context.paths.state, run.job_id)
    assert recorded == run
    assert not any(known.name == WING for known in context.policy.wings)
    assert release(context._replace(run=recorded), None).failure is None

    assert str(run.directory) not in Path("/proc/self/mountinfo").read_text()
    assert (os.path.exists(run.directory), file.exists()) == (False, False)
    assert (source / "within" / "kept").read_text() == "x"
