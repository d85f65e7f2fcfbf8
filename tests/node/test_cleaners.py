"""Others clean up, too: what they remove of a job's cache is not what the job wanted gone (ADR 66).

Real overlays, real find(1). Entries are directories (of `tool`) and single files (of `flat`).
"""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.lib.accounts import ALICE, BOB
from tests.lib.node import Node
from tests.lib.node_jobs import NodeJob, a_run, with_rules

pytestmark = [pytest.mark.report, pytest.mark.usefixtures("accounts")]

POLICY = f"""\
profiles:
  tool: {{variables: {{TOOL_CACHE: "{{dir}}"}}, entries: {{"*/": [meta]}}, relocation: relocatable}}
  flat: {{variables: {{FLAT_CACHE: "{{dir}}"}}, entries: {{"*.bin": []}}, relocation: relocatable}}
rules:
  - {{name: all, profiles: [tool, flat], scope: site}}
  - {{name: publisher, match: {{partition: ci}}, scope: site, publish: {{users: [{BOB}]}}}}
"""
NAMES = "a b c d"
BUILD = f"""\
for e in {NAMES}; do
    mkdir -p $TOOL_CACHE/$e
    printf 1 >$TOOL_CACHE/$e/meta; printf $e >$TOOL_CACHE/$e/code; printf $e >$FLAT_CACHE/$e.bin
done
find $WARMSTART_CACHE -mindepth 2 -exec touch -d '10 days ago' {{}} +
"""
ALL = {"tool": set(NAMES.split()), "flat": {f"{name}.bin" for name in NAMES.split()}}
# What a site runs as root, with the user's uid and the directory of all workspaces; or the user's own script.
OF_SITE = {
    "each file of the user": "find {workspace} -uid {uid} -type f -delete",
    "each old file": "find {workspace} -uid {uid} -type f -mtime +7 -delete",
    "all that is old": "find {workspace} -uid {uid} -mtime +7 -delete",
    "all of the user": "find {workspace} -uid {uid} -delete",
    "all, in pieces": "find {workspace}/*/cache -mindepth 2 -uid {uid} -exec rm -rf {{}} +",
}
OF_USER = {
    "the whole cache": "rm -rf $WARMSTART_CACHE/* || true",
    "each profile": "rm -rf $TOOL_CACHE/* $FLAT_CACHE/*",
    "each file": "find $WARMSTART_CACHE -type f -delete",
}


@pytest.fixture
def cleaned(base: Path) -> Node:
    """Return a node beside a store to which a publisher has published for all."""
    node = with_rules(base, POLICY)
    with a_run(node, user=BOB, partition="ci") as job:
        job.run(BUILD)
    return node


def seen(job: NodeJob) -> dict[str, set[str]]:
    """Return the whole entries of each profile that a job finds."""
    tool = job.run("cd $TOOL_CACHE; for f in */code; do [ -f ${f%/*}/meta ] && [ -f $f ] && echo ${f%/*}; done; true")
    flat = job.run("cd $FLAT_CACHE; ls | grep bin || true")
    return {"tool": set(tool.split()), "flat": set(flat.split())}


@pytest.mark.parametrize("who", [ALICE, BOB])
@pytest.mark.parametrize("way", [*OF_SITE, *OF_USER])
def test_a_cleaner_empties_no_scope(cleaned: Node, way: str, who: str) -> None:
    """Neither a user's nor, where a publisher's job is cleaned, the site's; `explain` says what has happened."""
    partition = "ci" if who == BOB else "main"
    with a_run(cleaned, user=who, partition=partition) as job:
        assert seen(job) == ALL
        if command := OF_SITE.get(way):
            argv = ["/bin/sh", "-c", command.format(workspace=cleaned.workspace, uid=job.job.uid)]
            subprocess.run(argv, check=False, capture_output=True)  # a mount point is busy
        else:
            job.run(OF_USER[way])
        assert seen(job) != ALL
    assert not any(job.by_profile("retired").values())
    if job.rejected():
        assert "as by a cleaner; it stays published" in job.explained()
    with a_run(cleaned, user=who, partition=partition) as after:
        assert seen(after) == ALL


def test_what_a_user_removes_is_retired(cleaned: Node) -> None:
    """One entry, with its directory; or one file, of a tool that has nothing else. `explain` says so."""
    with a_run(cleaned) as job:
        job.run("rm -r $TOOL_CACHE/a; rm $FLAT_CACHE/b.bin")
    assert job.by_profile("retired") == {"tool": 1, "flat": 1}
    assert job.by_profile("retired_examples") == {"tool": ["a"], "flat": ["b.bin"]}
    assert "removed, and so retired: 1 entry (a)" in job.explained()
    with a_run(cleaned) as after:
        assert seen(after) == {"tool": ALL["tool"] - {"a"}, "flat": ALL["flat"] - {"b.bin"}}


def test_files_that_go_alone_are_no_change(cleaned: Node) -> None:
    """A reaper takes what is old: here a quarter of the entries, and a half of another one."""
    with a_run(cleaned) as job:
        job.run("rm $TOOL_CACHE/a/*; rm $TOOL_CACHE/b/code")
    assert job.by_profile("retired")["tool"] == 0
    assert job.rejected() == {"lost files and no more, as by a cleaner; it stays published": 2}
    with a_run(cleaned) as after:
        assert seen(after) == ALL


def test_what_was_cleaned_and_built_again_takes_the_place(cleaned: Node) -> None:
    with a_run(cleaned) as job:
        job.run(
            "rm -r $TOOL_CACHE/*; mkdir $TOOL_CACHE/a; printf 1 >$TOOL_CACHE/a/meta; printf new >$TOOL_CACHE/a/code"
        )
    with a_run(cleaned) as after:
        assert seen(after) == ALL
        assert after.run("cat $TOOL_CACHE/a/code") == "new"
