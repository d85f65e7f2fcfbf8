"""Trees in container runtimes, as the wing's page says. `test_runtimes.py` runs it in a root with them."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from tests.lib import mounts
from tests.lib.accounts import ALICE
from tests.lib.site import Site
from tests.releases.runtimes import CACHE, RULES, SUITE, Runtime, cluster, image, runtime
from tests.slurm.wings.trees.test_trees import make_environment

__all__ = ["cluster", "image", "runtime"]
PAGE = Path(__file__).resolve().parents[4] / "docs" / "wings" / "trees.md"


def with_tree(runtime: Runtime, inside: str, tree: Path) -> str:
    """Return the command of the runtime's guide, with the option of the wing's page, if it names one."""
    pattern = rf"^\| \[[^|]*/no-enroot\.md#{runtime.section}\) \| `(--[^`]*\$WARMSTART_TREE[^`]*)`"
    options = re.findall(pattern, PAGE.read_text(), re.MULTILINE)
    option = "".join(f"{option} " for option in options).replace("/lustre/proj/envs/train", str(tree))
    before = "--rootfs" if runtime.program == "podman" else '"$WARMSTART_IMAGE"'
    head, found, tail = runtime.command(inside).rpartition(before)
    return f"{head}{option}{found}{tail}"


IN_TREE = 'busybox cat {tree}/pyvenv.cfg; busybox grep " {tree} r" /proc/self/mountinfo'


@pytest.mark.report
def test_a_tree_in_containers(site: Site, image: str, runtime: Runtime) -> None:
    """At its own path, read-only, with the option of the guide; with Apptainer also where the user binds more."""
    if (SUITE, runtime.program) == ("bookworm", "ch-run"):
        return  # its guide says why
    base, account = site.cluster.base, site.cluster.account(ALICE)
    source = base / f"tree.{runtime.program}"
    source.mkdir(mode=0o700)
    os.chown(source, account.uid, account.gid)
    with mounts.squashed(base, source, base / f"shared.{runtime.program}", account) as target:
        tree = target / "env"
        make_environment(site, source / "env")
        rules = f'trees: {{prefixes: ["{target}"]}}\n{RULES}'
        site.write_policy(rules, constant="containers", cache=CACHE, store=str(site.new_store(base / "store.tree")))
        command = with_tree(runtime, f"sh -c '{IN_TREE.format(tree=tree)}'", tree)
        script = f"#!/bin/bash\n{command}\n"
        if runtime.program == "apptainer":
            script += command.replace("exec", f"exec --bind={target}", 1)
            script += f"\nexport APPTAINER_BIND=/srv\n{command}\n"  # as modules of sites do
        comment = f"--comment=warmstart: image={image} tree={tree}"
        ended = [site.finish(site.cluster.submit(script, ALICE, "--nodelist=n1", comment)) for _ in range(2)]
        first, second = (job.output for job in ended)
        assert "in containers read-only; a copy is packed in the background" in first
        runs = 3 if runtime.program == "apptainer" else 1
        for output, kind in ((first, "fuse"), (second, "squashfs")):
            assert output.count("home = /usr/bin\n") == runs, output
            assert output.count(f" - {kind}") == runs, output
            # Charliecloud has no read-only mounts.
            read_only = 0 if (runtime.program, kind) == ("ch-run", "fuse") else runs
            assert output.count(f" {tree} ro,") == read_only, output
    site.write_policy()
