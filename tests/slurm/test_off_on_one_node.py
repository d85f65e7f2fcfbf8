"""Nodes of a job that have nothing of warmstart's: its tasks there run as they would without it."""

from __future__ import annotations

import shutil
from collections.abc import Iterator

import pytest

from tests.lib.accounts import ALICE
from tests.lib.processes import wait_until
from tests.lib.site import Site

# Each task makes a file where its variables say, as tools do; without warmstart that is /tmp and nowhere.
TASK = """\
for name in NUMBA_CACHE_DIR WARMSTART_CACHE TMPDIR; do
    eval "place=\\$$name"
    if [ -z "$place" ]; then state=unset; elif mkdir -p "$place/made.$$"; then state=usable; else state=broken; fi
    echo "$SLURMD_NODENAME $name $state"
done
rmdir "${TMPDIR:-/tmp}/made.$$" 2>/dev/null
true
"""


@pytest.fixture(params=["task prolog", "plugin"])
def reader(request: pytest.FixtureRequest) -> Iterator[Site]:
    """Yield the site, with the plugin or without."""
    site: Site = request.getfixturevalue("plugged" if request.param == "plugin" else "installed")
    site.write_policy(constant="spank" if request.param == "plugin" else "none")
    yield site
    site.write_policy()


@pytest.mark.threat(59)
def test_a_node_without_a_view_inherits_nothing(reader: Site) -> None:
    """As where warmstart is off there, or its prolog crashed: the step on both nodes ends well."""
    go = reader.cluster.base / "go"
    go.unlink(missing_ok=True)
    task = reader.cluster.base / "task.sh"
    task.write_text(TASK)
    task.chmod(0o755)
    wait = f"while [ ! -e {go} ]; do sleep 0.2; done"
    script = f"#!/bin/sh\necho ready\n{wait}\nexec srun --ntasks-per-node=1 --nodes=2 /bin/sh {task}\n"
    job = reader.cluster.submit(script, ALICE, "--nodelist=n1,n2")
    output = reader.cluster.account(ALICE).home / f"slurm-{job}.out"
    wait_until("the job's script", lambda: output.exists() and "ready" in output.read_text(), 60)
    shutil.rmtree(reader.view("n2", job))
    go.touch()
    ended = reader.finish(job)
    told = {(node, name): state for node, name, state in (line.split() for line in ended.output.splitlines()[1:])}
    assert ended.state == "COMPLETED", ended.output
    assert {state for (node, _), state in told.items() if node == "n1"} == {"usable"}, ended.output
    there = {name: state for (node, name), state in told.items() if node == "n2"}  # slurmstepd sets a TMPDIR
    assert there == {"NUMBA_CACHE_DIR": "unset", "WARMSTART_CACHE": "unset", "TMPDIR": "usable"}, ended.output


def test_while_it_is_off_a_jobs_view_goes(site: Site) -> None:
    """An epilog that finds warmstart off leaves the rest, but no view that a later run of that id would take."""
    variables = site.variables(910077)
    assert site.run_hook("prolog", variables).returncode == 0
    view = site.view("n1", 910077)
    assert (view / "environment").exists()
    off = site.etc / "off"
    off.touch()
    try:
        assert site.run_hook("epilog", variables).returncode == 0
        assert not view.exists()
        assert (site.var / "n1" / "state" / "910077").exists()
    finally:
        off.unlink()
    assert site.run_hook("epilog", variables).returncode == 0
