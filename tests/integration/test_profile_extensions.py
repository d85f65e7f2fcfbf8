"""A real extension of torch, built by ninja: what is harvested, and when the next job finds it built.

g++ and ninja are needed beside torch; where torch is missing this fails in CI (CI=true) and is skipped elsewhere.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.requirements import need_module
from warmstart.host.files import opened_dir
from warmstart.profiles import registry
from warmstart.profiles.judge import judge

JOB = Path(__file__).parents[1] / "jobs" / "extension_job.py"
PROFILE = registry.get("torch-extensions")
SECOND = 1_000_000_000
Files = dict[str, tuple[bytes, int]]  # content and mtime by name


def run_job(cache: Path) -> dict[str, Any]:
    """Run the job with its cache at `cache`. Return the line that it prints."""
    environment = {"PATH": "/usr/bin:/bin", "HOME": str(cache.parent), **PROFILE.environment(str(cache))}
    done = subprocess.run(
        [sys.executable, str(JOB)], env=environment, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    report: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return report


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the cache of a job that built the extension. Tests put their files there."""
    need_module("torch")
    if not shutil.which("ninja"):
        pytest.skip("ninja is not installed")
    cache = tmp_path_factory.mktemp("extension") / "cache"
    assert run_job(cache)["cache_misses"] == 1
    (cache / PROFILE.subdir / "answer" / "lock").touch()  # as a job that was killed leaves it
    return cache


@pytest.fixture(scope="module")
def built(cache: Path) -> Files:
    """Return the files that the profile takes from that cache."""
    directory = cache / PROFILE.subdir
    names = [path.relative_to(directory).as_posix() for path in directory.rglob("*") if path.is_file()]
    taken = [name for name in names if PROFILE.entry_of(name)]
    return {name: ((directory / name).read_bytes(), (directory / name).stat().st_mtime_ns) for name in taken}


def restore(cache: Path, files: Files, mtime: Callable[[int], int]) -> None:
    """Put only the harvested files where a job's cache is."""
    shutil.rmtree(cache, ignore_errors=True)
    for name, (content, mtime_ns) in files.items():
        path = cache / PROFILE.subdir / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        os.utime(path, ns=(mtime(mtime_ns), mtime(mtime_ns)))


def verdict(cache: Path, files: Files) -> str | None:
    """Return the judge's verdict on the extension's files."""
    restore(cache, files, int)
    fd = os.open(cache / PROFILE.subdir, os.O_RDONLY)
    try:
        return judge(PROFILE.name, fd, {"answer": list(files)})["answer"]
    finally:
        os.close(fd)


RUNS = {"here": "constant", "elsewhere": "17.0a1b2c3d"}
# Each build in a process of its own, and one import of torch for all.
INLINE = """
import os, sys
from torch.utils.cpp_extension import load_inline
for directory in sys.argv[1:]:
    if not os.fork():
        os.environ["TORCH_EXTENSIONS_DIR"] = directory
        load_inline("inline", "int answer() { return 42; }", no_implicit_headers=True, is_python_module=False)
        os._exit(0)
    assert os.wait()[1] == 0
"""


def test_a_source_that_was_built_at_a_runs_own_path_is_refused(cache: Path, tmp_path: Path) -> None:
    """PyTorch writes inline sources into the cache, and ninja's files name the run's own path."""
    places = {name: tmp_path / run / "cache" / PROFILE.subdir for name, run in RUNS.items()}
    environment = {"PATH": "/usr/bin:/bin", "HOME": str(tmp_path)}
    argv = [sys.executable, "-c", INLINE, *map(str, places.values())]
    subprocess.run(argv, env=environment, capture_output=True, timeout=120, check=True)
    shown = {}
    for name, directory in places.items():
        assert str(directory / "inline" / "main.cpp") in (directory / "inline" / "build.ninja").read_text()
        files = [path.relative_to(directory).as_posix() for path in directory.rglob("*") if path.is_file()]
        with opened_dir(str(directory)) as fd:
            shown[name] = judge(PROFILE.name, fd, {"inline": [file for file in files if PROFILE.entry_of(file)]})
    assert shown == {"here": {"inline": None}, "elsewhere": {"inline": "made-elsewhere"}}


@pytest.mark.parametrize("mtime", [int, lambda ns: ns // SECOND * SECOND], ids=["exact", "whole seconds"])
def test_what_is_harvested_is_found_built_at_the_same_path(
    cache: Path, built: Files, mtime: Callable[[int], int]
) -> None:
    """With harvested mtimes, exact or in whole seconds as in a bundle, ninja has nothing to do."""
    restore(cache, built, mtime)
    assert run_job(cache)["cache_hits"] == 1


def test_without_its_mtimes_it_is_built_again(cache: Path, built: Files) -> None:
    """Hence such a profile is not seeded by a plain copy."""
    restore(cache, built, lambda _: 0)
    assert run_job(cache)["cache_misses"] == 1


def test_what_torch_left_is_valid(cache: Path, built: Files) -> None:
    """The entry of a finished build. The baton of a killed one is not part of it."""
    names = ("answer.so", "extension_job.o", "build.ninja", ".ninja_log", ".ninja_deps")
    assert {*built} == {f"answer/{name}" for name in names}
    assert verdict(cache, built) is None


def test_a_library_that_was_cut_short_is_refused_though_ninja_takes_it(cache: Path, built: Files) -> None:
    """Ninja has nothing to do, so without the validator the job would load half a library."""
    library, mtime_ns = built["answer/answer.so"]
    dice = random.Random(7)
    for _ in range(20):
        cut = library[: dice.randrange(len(library))]
        assert verdict(cache, built | {"answer/answer.so": (cut, mtime_ns)}) == "elf-truncated"
