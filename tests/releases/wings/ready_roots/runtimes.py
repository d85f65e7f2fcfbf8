"""Runtimes that start from the job's tree, as the wing's page says. `tests/releases/test_runtimes.py` runs it."""

from __future__ import annotations

import re
from pathlib import Path

from tests.lib.accounts import ALICE
from tests.lib.site import Site
from tests.releases.runtimes import CACHE, RULES, Runtime, cluster, image, runtime

__all__ = ["cluster", "image", "runtime"]
PAGE = Path(__file__).resolve().parents[4] / "docs" / "wings" / "ready_roots.md"
IN_TREE = "busybox stat -c %u:%g /tool; busybox touch /new || echo read-only"


def test_a_container_starts_from_the_tree(site: Site, image: str, runtime: Runtime) -> None:
    commands = dict(re.findall(r"`((\S+) [^`]*\$WARMSTART_ROOTFS[^`]*)`", PAGE.read_text()))
    named = {program: command for command, program in commands.items()}
    assert named.keys() == {"apptainer", "ch-run"}
    if runtime.program not in named:
        return
    base, account = site.cluster.base, site.cluster.account(ALICE)
    (base / "shelf").mkdir(exist_ok=True)
    command = named[runtime.program].replace("COMMAND", f"sh -c '{IN_TREE}'")
    site.write_policy(
        RULES,
        constant="containers",
        cache=CACHE,
        store=str(site.new_store(base / "store.root")),
        workspace=f"{site.workspace}\n  shelf: {base}/shelf",
    )
    script = f"#!/bin/sh\n{command}\n"
    ended = site.finish(site.cluster.submit(script, ALICE, "--nodelist=n1", f"--comment=warmstart: image={image}"))
    ids = f"{account.uid}:{account.gid}"
    assert {"read-only", ids} < {*ended.output.splitlines()}, ended.output
    site.write_policy()
