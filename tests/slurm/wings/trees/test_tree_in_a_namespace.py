"""A tree that the hook `job-container`, run by hand, shows in a job's mount namespace."""

from __future__ import annotations

import pytest

from tests.lib.accounts import ALICE
from tests.lib.namespaces import JOBS, a_namespace, as_alice, mounts, run_hook
from tests.lib.site import Site
from tests.slurm.wings.trees.test_trees import make_environment, shared


@pytest.mark.threat(51)
def test_a_tree_in_a_home_that_root_cannot_enter(site: Site) -> None:
    """The first job sees the tree itself, read-only, the second the copy, which it keeps when its epilog has run."""
    ways, left = [], ""
    with shared(site, "tree.namespace", "namespace") as (target, source):
        make_environment(site, source / "env")
        tree = target / "env"
        marker = tree / "lib/python3.11/site-packages/one/__init__.py"
        for job_id in (next(JOBS), next(JOBS)):
            variables = site.variables(job_id, SLURM_JOB_COMMENT=f"warmstart: tree={tree}")
            assert site.run_hook("prolog", variables).returncode == 0
            with a_namespace(site) as namespace:
                assert run_hook(site, job_id, namespace) == []
                (options,) = mounts(site, namespace, tree)
                assert {"ro", "nosuid", "nodev"} <= set(options.split(","))
                kind = as_alice(site, namespace, "/usr/bin/stat", "-f", "-c", "%T", marker)
                ways.append(kind.strip().removesuffix("blk"))
                site.wait_imports()
                (source / "env/lib/python3.11/site-packages/one/__init__.py").write_text("edited\n")
                assert site.run_hook("epilog", variables).returncode == 0
                left = as_alice(site, namespace, "/bin/cat", marker)
        assert site.leftovers() == []
    site.constant.rmdir()
    assert (ways, left) == (["fuse", "squashfs"], "one\n")


@pytest.mark.threat(51)
@pytest.mark.parametrize("case", ["a link on the way", "gone"])
def test_no_tree_is_shown_elsewhere(site: Site, case: str) -> None:
    """The job's user moves it after the prolog has looked; the cache is shown all the same."""
    with shared(site, f"tree.{case[0]}", "namespace") as (target, source):
        make_environment(site, source / "envs" / "env")
        job_id = next(JOBS)
        variables = site.variables(job_id, SLURM_JOB_COMMENT=f"warmstart: tree={target}/envs/env")
        assert site.run_hook("prolog", variables).returncode == 0
        site.cluster.run(["/bin/mv", f"{target}/envs", f"{target}/moved"], ALICE)
        if case == "a link on the way":
            site.cluster.run(["/bin/ln", "-s", "moved", f"{target}/envs"], ALICE)
        with a_namespace(site) as namespace:
            done = site.run_hook("job-container", site.variables(job_id, SLURM_NS=namespace))
            assert done.returncode == 0
            assert len(mounts(site, namespace)) == 1
            assert [mounts(site, namespace, target / way / "env") for way in ("envs", "moved")] == [[], []]
        (failed,) = site.events(job_id, "step.failed")
        assert failed["error"]["code"] == "not-shown"
        assert site.run_hook("epilog", variables).returncode == 0
    site.constant.rmdir()
