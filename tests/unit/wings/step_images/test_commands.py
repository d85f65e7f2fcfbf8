"""What `warmstart plan` says of steps' images."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.lib.command_line import POLICY, installed, run


@pytest.mark.parametrize(("partition", "told"), [("gpu", True), ("cpu", False)])
def test_a_job_with_caches_has_some_for_each_image(tmp_path: Path, partition: str, told: bool) -> None:
    before = POLICY.partition("rules:")[0]
    site = installed(tmp_path, f"{before}rules: [{{name: one, match: {{partition: gpu}}, profiles: [numba]}}]\n")
    said = " ".join(run(site, "plan", "--user", "nobody", "--partition", partition).stdout.split())
    assert ("Each other image that a step names (srun --container-image) has caches of its own" in said) is told
