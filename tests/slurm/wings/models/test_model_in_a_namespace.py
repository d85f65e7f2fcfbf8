"""Copies of a model that the hook `job-container`, run by hand, shows in a job's mount namespace."""

from __future__ import annotations

import os

import pytest

from tests.lib.accounts import ALICE
from tests.lib.namespaces import JOBS, a_namespace, as_alice, run_hook
from tests.lib.site import Site
from tests.slurm.wings.models.test_models import SIZE, make_snapshot, shared


@pytest.mark.threat(62)
def test_a_model_of_a_shared_file_system(site: Site) -> None:
    """Each copy over its file, in the namespace alone, as long as the job lives; its user alone gets to them."""
    with shared(site, "model.namespace", "namespace") as (target, source):
        data = os.urandom(SIZE)
        snapshot = target / "hub" / make_snapshot(site, source / "hub", data)
        blob = target / (snapshot / "model.safetensors").relative_to(target)
        seen = []
        for job_id in (next(JOBS), next(JOBS), next(JOBS)):
            variables = site.variables(job_id, SLURM_JOB_COMMENT=f"warmstart: model={snapshot}")
            assert site.run_hook("prolog", variables).returncode == 0
            with a_namespace(site) as namespace:
                assert run_hook(site, job_id, namespace) == []
                kind = as_alice(site, namespace, "/usr/bin/stat", "-L", "-f", "-c", "%T", blob)
                read = as_alice(site, namespace, "/usr/bin/stat", "-L", "-c", "%A %U", blob)
                seen.append((kind.strip().removesuffix("blk"), read.strip()))
                site.wait_imports()
                assert site.run_hook("epilog", variables).returncode == 0
        assert site.leftovers() == []
    site.constant.rmdir()
    assert [kind == "fuse" for kind, _ in seen] == [True, True, False]
    assert seen[-1][1] == "-r--r--r-- root"
    assert ALICE in seen[0][1]
