"""Profiles whose tools are not installed: their files are written by hand, everything else is real.

A single file under a lock, files that jobs declare, a profile of the site's own.
"""

from __future__ import annotations

import fcntl
import hashlib
from pathlib import Path

import pytest

from tests.lib.accounts import BOB
from tests.lib.node_jobs import a_run, with_rules, write_rules

RTX = "rules:\n  - {name: all, profiles: [trt-rtx]}\n"
HIDDEN = """\
files: {include: ["**", .rc, .venv/**], facts: [], only_successful: false}
rules:
  - {name: all}
"""
FILES = """\
files: {include: ["engines/*.plan", "models/*/"], max_size: 1MiB, facts: [], only_successful: false}
rules:
  - {name: all, env: {ANY: thing}}
"""
OWN = """\
profiles:
  mytool:
    variables: {MYTOOL_CACHE: "{dir}/v1"}
    entries: {"v1/*/": ["meta.json"]}
    never: ["*.log"]
    formats: {"*.json": json}
    relocation: relocatable
rules:
  - {name: all, profiles: [mytool]}
"""


def test_a_single_file_takes_the_place_of_the_last_one(base: Path) -> None:
    """Each job finds what the last one to end made of it; what is not new replaces nothing."""
    node = with_rules(base, RTX)
    with a_run(node) as first:
        first.run('test ! -e "$WARMSTART_TRT_RTX_CACHE"; printf v1 > "$WARMSTART_TRT_RTX_CACHE"')
    with a_run(node, "n2") as second, a_run(node) as slower:
        for job in (second, slower):
            assert job.run('cat "$WARMSTART_TRT_RTX_CACHE"') == "v1"
        second.run('cd "$(dirname "$WARMSTART_TRT_RTX_CACHE")"; printf v1+v2 > new; mv new "$WARMSTART_TRT_RTX_CACHE"')
        slower.run('printf v1+other+more >> "$WARMSTART_TRT_RTX_CACHE"')
        second.end()
    assert [len(job.published()) for job in (first, second, slower)] == [1, 1, 1]
    with a_run(node, "n2") as idle:
        assert idle.run('cat "$WARMSTART_TRT_RTX_CACHE"') == "v1v1+other+more"
    with a_run(node) as smaller:
        smaller.run('printf v3 > "$WARMSTART_TRT_RTX_CACHE"')
    assert [(len(job.published()), job.rejected()) for job in (idle, smaller)] == [(0, {}), (1, {})]
    with a_run(node) as last:
        assert last.run('cat "$WARMSTART_TRT_RTX_CACHE"') == "v3"
    with a_run(node, user=BOB) as other:
        other.run('test ! -e "$WARMSTART_TRT_RTX_CACHE"')


def test_a_single_file_is_left_out_while_its_lock_is_held(base: Path) -> None:
    """The epilog waits a bounded time for the tool's flock(2), and neither makes nor removes the lock file."""
    node = with_rules(base, RTX)
    with a_run(node) as job:
        job.run('printf v1 > "$WARMSTART_TRT_RTX_CACHE"; : > "$WARMSTART_TRT_RTX_CACHE.lock"')
        with Path(f"{job.place('WARMSTART_TRT_RTX_CACHE')}.lock").open() as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            job.end()
    assert (job.rejected(), job.published()) == ({"its lock is held": 1}, [])
    with a_run(node) as again:
        again.run('printf v1 > "$WARMSTART_TRT_RTX_CACHE"; : > "$WARMSTART_TRT_RTX_CACHE.lock"')
    assert (again.rejected(), len(again.published())) == ({}, 1)


@pytest.mark.threat(16)
def test_a_lock_that_is_a_link_leads_nowhere(base: Path, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("root's")
    node = with_rules(base, RTX)
    with a_run(node) as job:
        job.run(f'printf vv > "$WARMSTART_TRT_RTX_CACHE"; ln -s {secret} "$WARMSTART_TRT_RTX_CACHE.lock"')
    assert (job.rejected()["symbolic link"], job.published()) == (2, [])
    assert secret.read_text() == "root's"


def test_hidden_and_empty_files_come_back_where_the_policy_says_so(base: Path) -> None:
    """An environment has both. Hidden ones are kept only where a pattern names the dot, leftovers of editors never."""
    make = 'cd "$WARMSTART_FILES"; mkdir -p .venv/lib; : > .venv/lib/__init__.py; echo x > .rc; echo y > .a.swp; : > b'
    node = with_rules(base, HIDDEN)
    for rules, there in (
        (HIDDEN.replace(", .rc, .venv/**", ""), ["./b"]),
        (HIDDEN, ["./.rc", "./.venv/lib/__init__.py", "./b"]),
    ):
        write_rules(node, rules)
        with a_run(node, comment=f"warmstart: files=env{len(there)}") as first:
            first.run(make)
        with a_run(node, "n2", comment=f"warmstart: files=env{len(there)}") as second:
            assert second.run('cd "$WARMSTART_FILES"; find . -type f | sort').splitlines() == there


def test_files_that_a_job_declares(base: Path) -> None:
    """Only jobs that declare the same name get them. Limits apply."""
    node, named = with_rules(base, FILES), "warmstart: files=llama-70b"
    engine = "printf engine > engines/a.plan"
    model = "mkdir -p models/m/x; printf w > models/m/x/w.bin; printf c > models/m/config"
    bad = "head -c 9000 /dev/zero > engines/b.plan"
    large = "head -c 2M /dev/urandom > engines/large.plan; printf no > engines/notes.txt; : > engines/empty.plan"
    with a_run(node, comment=named) as first:
        first.run(f'cd "$WARMSTART_FILES"; mkdir engines; {engine}; {model}; {bad}; {large}')
    assert first.rejected() == {"not-written": 1, "too-large": 1}
    with a_run(node, "n2", comment=named) as second:
        found = second.run('cd "$WARMSTART_FILES"; find . -type f | sort; cat engines/a.plan')
        second.run('cd "$WARMSTART_FILES"; printf x > engines/a.plan; printf x > models/m/config')
        models = ["./models/m/config", "./models/m/x/w.bin"]
        names = ["./engines/a.plan", "./engines/empty.plan", *models]
        assert found.splitlines() == [*names, "engine"]
    with a_run(node, comment="warmstart: files=other") as other:
        assert other.run('ls "$WARMSTART_FILES"') == ""
    with a_run(node) as none:
        assert "WARMSTART_FILES" not in none.variables
    with a_run(node, comment=named) as last:
        assert last.run('cat "$WARMSTART_FILES/engines/a.plan" "$WARMSTART_FILES/models/m/config"') == "xx"
    assert second.rejected() == {}  # what it changed took the published one's place
    shown = node.command("cache", "show", first.published()[0]["bundle"]).stdout
    assert f"{hashlib.sha256(b'engine').hexdigest()}  engines/a.plan" in shown.splitlines()


def test_a_profile_of_the_sites_own(base: Path) -> None:
    """Variables, entries, needed files and formats come from the policy. A job may ask for it, but not for `files`."""
    node = with_rules(base, OWN)
    with a_run(node) as cold:
        assert cold.variables["MYTOOL_CACHE"] == cold.variables["WARMSTART_CACHE"] + "/mytool/v1"
        cold.run(
            'mkdir -p "$MYTOOL_CACHE"; cd "$MYTOOL_CACHE"; mkdir good half broken;'
            "printf '{}' > good/meta.json; printf code > good/kernel.bin; printf said > good/build.log;"
            "printf code > half/kernel.bin; printf '{' > broken/meta.json; printf top > top.bin"
        )
    assert cold.rejected() == {"incomplete": 1, "json-malformed": 1}
    write_rules(node, OWN.replace("profiles: [mytool]", "env: {ANY: thing}"))
    with a_run(node, "n2", comment="warmstart: profiles=mytool") as warm:
        found = warm.run('cd "$MYTOOL_CACHE"; find . -type f | sort')
        assert found.splitlines() == ["./good/kernel.bin", "./good/meta.json"]
    with a_run(node, comment="warmstart: profiles=files") as refused:
        pass
    assert refused.failures(degree="refused")
