"""Real tools: their entries are harvested, judged, and hit by another process at another path.

The tests need no cluster and no GPU: Triton cross-compiles. Without a tool (`pip install warmstart[torch,tools]`) its
tests fail in CI (CI=true) and are skipped elsewhere.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.lib.requirements import need_module
from warmstart.host.deadline import after
from warmstart.host.files import opened_dir
from warmstart.host.identity import Identity
from warmstart.profiles import naming, registry
from warmstart.profiles.client import judged

JOBS = Path(__file__).parents[1] / "tools" / "jobs"
NEEDED_MODULE = {"numba": "numba", "inductor": "torch", "triton": "triton", "jax": "jax"}
# `make test` installs Numba alone.
TOOLS = ["numba", *(pytest.param(tool, marks=pytest.mark.sweep) for tool in NEEDED_MODULE if tool != "numba")]
Entries = dict[str, list[str]]


def run_job(tool: str, cache: Path, *arguments: str) -> dict[str, Any]:
    """Run the tool's job with its cache at `cache`. Return the line that it prints."""
    environment = {"PATH": os.defpath, "HOME": str(cache.parent), "TMPDIR": str(cache.parent)}
    environment |= registry.get(tool).environment(str(cache), str)
    command = [sys.executable, str(JOBS / f"{tool}_job.py"), *arguments]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    report: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return report


@pytest.fixture(scope="module", params=TOOLS)
def tool(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    need_module(NEEDED_MODULE[name])
    return name


WHERE = {
    "inductor": """from torch._inductor import config
from torch._inductor.runtime.cache_dir_utils import cache_dir
print(cache_dir(), config.cpp_cache_precompile_headers)""",
    "jax": """import jax
print(not jax.config.jax_compilation_cache_dir, jax.config.jax_persistent_cache_enable_xla_caches)""",
    "numba": "from numba.core import config; print(repr(config.CACHE_DIR))",
    "triton": "from os.path import normpath; from triton import knobs; print(normpath(knobs.cache.dir))",
}


def test_a_profile_says_what_the_tool_takes_without_its_variables(tool: str, tmp_path: Path) -> None:
    there = {"HOME": str(tmp_path), "TMPDIR": str(tmp_path), "LOGNAME": "a", "PATH": os.defpath}
    places = {"{TMPDIR:/tmp}": str(tmp_path), "{TRITON_HOME:~}": str(tmp_path), "{user}": "a"}
    defaults = registry.get(tool).defaults
    for placeholder, value in places.items():
        defaults = {name: default.replace(placeholder, value) for name, default in defaults.items()}
    said = [
        subprocess.run([sys.executable, "-c", WHERE[tool]], env=env, capture_output=True, text=True, check=True).stdout
        for env in (there, {**there, **defaults}, {**there, **dict.fromkeys(defaults, "/elsewhere")})
    ]
    assert said[0] == said[1] != said[2]


@pytest.fixture(scope="module")
def cold(tool: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    cache = tmp_path_factory.mktemp(tool) / "cache"
    report = run_job(tool, cache)
    assert report["cache_hits"] == 0
    assert report["cache_misses"] > 0
    return cache / registry.get(tool).name


def harvestable(tool: str, directory: Path) -> Entries:
    """Return the entries of a cache directory by the profile's own rule."""
    entries: Entries = {}
    for path in sorted(directory.rglob("*")):
        name = path.relative_to(directory).as_posix()
        entry = naming.entry_of(registry.get(tool), name) if path.is_file() else None
        if entry:
            entries.setdefault(entry, []).append(name)
    return entries


def test_every_file_that_the_tool_wrote_is_valid_or_known_to_be_no_entry(tool: str, cold: Path) -> None:
    """A new kind of file fails this test. As in the epilog, a confined child judges, which reaches the stage alone."""
    entries = harvestable(tool, cold)
    assert entries
    taken = {name for names in entries.values() for name in names}
    left = {path.relative_to(cold).as_posix() for path in cold.rglob("*") if path.is_file()} - taken
    assert {name for name in left if not name.startswith("locks/") and not name.endswith(".so.load_ok")} == set()
    cold.chmod(0o755)
    nobody = Identity("nobody", 65534, 65534) if os.geteuid() == 0 else Identity("me", os.getuid(), os.getgid())
    with opened_dir(str(cold)) as fd:
        answers = dict(judged(nobody, tool, fd, entries, defined=(), deadline=after(60)))
    assert answers == dict.fromkeys(entries)
