"""A tree that the hook `job-container`, run by hand, shows in a job's mount namespace."""

from __future__ import annotations

import pytest

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
