"""Copies of a model in Apptainer's containers. `tests/releases/test_runtimes.py` runs it in a root with Apptainer."""

from __future__ import annotations

import os

import pytest

from tests.lib.accounts import ALICE
from tests.lib.site import Site
from tests.releases.runtimes import CACHE, RULES, Runtime, cluster, image, runtime

__all__ = ["cluster", "image", "runtime"]
SIZE = (16 << 20) + 5
IN_MODEL = "busybox sha256sum {model}/model.bin; busybox stat -c %i {model}/model.bin; busybox ls {model}"


@pytest.mark.report
def test_a_model_in_containers(site: Site, image: str, runtime: Runtime) -> None:
    """Apptainer shows copies at the files' own paths, also where the user binds the directory."""
    if runtime.program != "apptainer":
        return  # the wing's page says why
    account, model = site.cluster.account(ALICE), site.cluster.base / "models/tiny"
    model.mkdir(parents=True)
    file = model / "model.bin"
    file.write_bytes(os.urandom(SIZE))
    (model / "config.json").touch()
    for path in (model, file):
        os.chown(path, account.uid, account.gid)
    rules = f'models: {{prefixes: ["{model.parent}"]}}\n{RULES}'
    (site.cluster.base / "shelf").mkdir(exist_ok=True)
    shelf = f"{site.workspace}\n  shelf: {site.cluster.base}/shelf"
    site.write_policy(rules, constant="containers", cache=CACHE, workspace=shelf)
    command = runtime.command(f"sh -c '{IN_MODEL.format(model=model)}'")
    script = f"#!/bin/bash\n{command}\n" + command.replace("exec", f"exec --bind={model}", 1)
    script += f"\nexport APPTAINER_BIND={model}\n{command}\n"  # as modules of sites do
    comment = f"--comment=warmstart: image={image} model={model}"
    seen = []
    for _ in range(3):
        output = site.finish(site.cluster.submit(script, ALICE, "--nodelist=n1", comment)).output
        lines = [line for line in output.splitlines() if not line.startswith(("warmstart: ", "INFO:"))][-12:]
        assert lines[:4] == lines[4:8] == lines[8:], output
        digest, inode, *names = lines[:4]
        assert names == ["config.json", "model.bin"], output
        seen.append((digest, inode == str(file.stat().st_ino)))
        site.wait_imports()
    assert {digest for digest, _ in seen} == {seen[0][0]}
    assert [is_original for _, is_original in seen] == [True, True, False]
    site.write_policy()
