"""`warmstart profile try`: entries, what is damaged, and what is left out, of a directory's files."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from tests.lib import command_line
from tests.lib.cache_files import numba_files
from tests.lib.node import Node

DRAFT = """\
version: 1
store_user: daemon
import_user: bin
validate_user: sys
paths: {store: /shared/warmstart}
images: {registries: [reg.example.com]}
rules: [{name: everyone, profiles: [own]}]
profiles:
  own:
    variables: {OWN_CACHE: "{dir}"}
    entries: {"%s": []}
    relocation: relocatable
"""


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    """Return a cache of some tool: two entries of two files each, and a lock."""
    for name in ("v2/aa/kernel.bin", "v2/aa/meta.json", "v2/bb/kernel.bin", "v2/bb/meta.json", "v2/aa.lock"):
        path = tmp_path / "cache" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("x")
    return tmp_path / "cache"


def tried(site: Node, cache: Path, pattern: str) -> tuple[int, dict[str, object], str]:
    """Try a profile with that pattern; return the exit status, its JSON and what people see."""
    draft = cache.parent / "draft.yaml"
    draft.write_text(DRAFT % pattern)
    command = ["profile", "try", str(cache), "--profile", "own", "--policy", str(draft)]
    done = command_line.run(site.installation, *command, "--json")
    return done.exit_code, json.loads(done.stdout), command_line.run(site.installation, *command).stdout


def test_a_pattern_that_fits(node: Node, cache: Path) -> None:
    status, found, shown = tried(node, cache, "v2/*/")
    files = [["v2/aa/kernel.bin", "v2/aa/meta.json"], ["v2/bb/kernel.bin", "v2/bb/meta.json"]]
    assert (status, sorted(sorted(names) for names in found["entries"].values())) == (0, files)  # type: ignore[attr-defined]
    assert found["ignored"] == {"lock or temporary file": 1}
    assert shown.splitlines()[0] == "2 entries, 4B"
    assert sorted(os.listdir(cache / "v2")) == ["aa", "aa.lock", "bb"]  # nothing is moved


def test_a_pattern_that_does_not(node: Node, cache: Path) -> None:
    """The mistake that only raw lines of the log told: a slash is missing."""
    status, found, shown = tried(node, cache, "v2/*")
    assert (status, found["entries"]) == (1, {})
    assert found["ignored"] == {"no file of an entry": 4, "lock or temporary file": 1}
    assert "no file of an entry: v2/aa/kernel.bin" in shown


def test_a_damaged_entry_and_a_link(node: Node, tmp_path: Path) -> None:
    for name, content in numba_files().items():
        (tmp_path / "good" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "good" / name).write_bytes(content)
    assert node.command("profile", "try", str(tmp_path / "good"), "--profile", "numba").exit_code == 0
    for name, content in numba_files().items():
        path = tmp_path / "numba" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content[:-9] if name.endswith(".nbc") else content)
    (tmp_path / "numba/link").symlink_to("/etc/passwd")
    found = node.command("profile", "try", str(tmp_path / "numba"), "--profile", "numba")
    assert found.exit_code == 1
    assert "damaged" in found.stdout
    assert "1 files" in found.stdout


def test_wrong_usage(node: Node, tmp_path: Path) -> None:
    unknown = node.command("profile", "try", str(tmp_path), "--profile", "nunba")
    assert (unknown.exit_code, "no profile nunba; there are " in unknown.stderr) == (2, True)
    (tmp_path / "draft.yaml").write_text("version: 1\nno_such: 1\n")
    wrong = node.command(
        "profile", "try", str(tmp_path), "--profile", "numba", "--policy", str(tmp_path / "draft.yaml")
    )
    assert (wrong.exit_code, "no_such" in wrong.stderr) == (2, True)
