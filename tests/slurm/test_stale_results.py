"""A stale entry is built anew once; then every job is right and warm. Real tools, real Slurm."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.lib.accounts import ALICE
from tests.lib.requirements import need_module
from tests.lib.site import Site, result

JOBS = Path(__file__).resolve().parents[1] / "tools" / "jobs"
RULES = "rules:\n  - {{name: all, profiles: [{tool}]}}\n"


class Project:
    """A user's source directory on the shared file system, and the jobs that run it."""

    def __init__(self, site: Site, tool: str) -> None:
        self.site = site
        self.path = site.cluster.base / f"project-{tool}"
        self.path.mkdir()
        self._jobs = 0
        store = site.new_store(site.cluster.base / f"store-stale-{tool}")
        site.write_policy(RULES.format(tool=tool), constant="spank", store=str(store))

    def add(self, name: str) -> Path:
        return Path(shutil.copy(JOBS / name, self.path / name))

    def run(self, command: str, *arguments: str) -> dict[str, Any]:
        """Run a shell command as a job, on the two nodes in turn; return the line that it printed, if any."""
        node = f"n{self._jobs % 2 + 1}"
        self._jobs += 1
        script = f"#!/bin/sh\ncd {self.path}\n{command}\n"
        job_id = self.site.cluster.submit(script, ALICE, f"--nodelist={node}", "--cpus-per-task=2", *arguments)
        ended = self.site.finish(job_id)
        assert ended.state == "COMPLETED", ended
        return result(ended.output) if ended.output.strip() else {}


def test_after_an_edit_of_a_helper_one_clean_run_is_enough(plugged: Site) -> None:
    """Numba does not see the edit. The job clears its cache and builds, or starts fresh, once; later jobs are right."""
    need_module("numba")
    project = Project(plugged, "numba")
    helper = project.path / "stale_helper.py"
    job = f"{plugged.cluster.python} {project.add('stale_job.py')}"

    def edit(factor: int) -> None:
        helper.write_text(f"import numba\n\n\n@numba.njit\ndef factor():\n    return {factor}\n")

    edit(2)
    assert project.run(job) == {"value": 200, "hits": 0, "misses": 1}
    edit(6)
    assert project.run(job) == {"value": 200, "hits": 1, "misses": 0}  # wrong, and as wrong as without warmstart
    assert project.run(f'rm -rf "$NUMBA_CACHE_DIR"/*; {job}') == {"value": 600, "hits": 0, "misses": 1}
    assert project.run(job) == {"value": 600, "hits": 1, "misses": 0}
    edit(7)
    assert project.run(job, "--warm-fresh") == {"value": 700, "hits": 0, "misses": 1}
    assert project.run(job) == {"value": 700, "hits": 1, "misses": 0}
    edit(8)
    assert project.run('rm -rf "$NUMBA_CACHE_DIR"/*') == {}  # and nothing built in its place, as a cleaner does
    assert plugged.command("cache", "compact", "--json").returncode == 0
    assert project.run(job) == {"value": 700, "hits": 1, "misses": 0}


@pytest.mark.tool
def test_an_edited_extension_is_built_once(plugged: Site) -> None:
    """Ninja sees the edit. The job that builds the new version publishes it; the next one builds nothing."""
    need_module("torch")
    project = Project(plugged, "torch-extensions")
    project.add("report.py")
    job = f"{plugged.cluster.python} {project.add('extension_job.py')}"
    source = project.add("extension_job.cpp")
    built = []
    for edited in (False, True, False):  # the last one is on the node that has the first one's bundle
        if edited:
            source.write_text(source.read_text() + "\n// edited\n")
        built.append(project.run(job)["cache_misses"])
    assert built == [1, 1, 0]
