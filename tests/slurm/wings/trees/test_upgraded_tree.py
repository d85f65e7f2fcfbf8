"""A packed copy in use, while warmstart is upgraded and uninstalled."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.lib import installation
from tests.lib.accounts import ALICE
from tests.lib.processes import wait_until
from tests.lib.site import Site
from tests.slurm.test_broken_installation import REPOSITORY, own
from tests.slurm.wings.trees import test_trees as trees

__all__ = ["own"]


@pytest.mark.sweep
def test_a_tree_outlives_an_upgrade_and_an_uninstallation(own: Site) -> None:
    """A running job reads its copy to its end; then nothing is mounted. Jobs after the next installation have it."""
    go, prefix = own.cluster.base / "go", own.cluster.prefix
    with trees.shared(own, "tree.kept") as (target, source):
        file = trees.make_environment(own, source / "env") / "one/__init__.py"
        seen = file.relative_to(source)
        trees.run(own, target / "env", "#!/bin/sh\n", ALICE, "--nodelist=n1")
        script = f"#!/bin/sh\ncat {target}/{seen}\nwhile [ ! -e {go} ]; do sleep 0.1; done\ncat {target}/{seen}\n"
        comment = f"--comment=warmstart: tree={target}/env"
        job = own.cluster.submit(script, ALICE, "--nodelist=n1", comment)
        wait_until("the job", lambda: "one" in own.cluster.job(job).output, 60)
        file.write_text("edited\n")
        installation.install(prefix)
        subprocess.run(["/usr/bin/make", "-s", "uninstall", f"PREFIX={prefix}"], check=True, cwd=REPOSITORY)
        assert f"{own.workspace}/n1/{job}." in Path("/proc/self/mountinfo").read_text()
        go.touch()
        ended = own.cluster.wait(job)
        assert (ended.state, ended.output) == ("COMPLETED", "one\none\n")
        wait_until("the end of the programs", lambda: not (prefix / "lib/warmstart/python").exists(), 60)
        wait_until("the end of the mounts", lambda: own.leftovers() == [], 60)
        assert str(prefix) not in Path("/proc/self/mountinfo").read_text()
        installation.install(prefix)
        last = own.finish(own.cluster.submit(f"#!/bin/sh\ncat {target}/{seen}\n", ALICE, "--nodelist=n1", comment))
        assert last.output == "one\n"
