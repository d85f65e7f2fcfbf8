"""A real extension of torch, built by ninja: what is harvested, and when the next job finds it built.

g++ and ninja are needed beside torch; where torch is missing this fails in CI (CI=true) and is skipped elsewhere.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.lib.loaded import loaded
from tests.lib.requirements import need_module, unavailable
from warmstart.host.files import opened_dir
from warmstart.profiles import registry
from warmstart.profiles.judge import judge

JOB = Path(__file__).parents[1] / "tools" / "jobs" / "extension_job.py"
PROFILE = registry.get("torch-extensions")
SECOND = 1_000_000_000
RunScript = Callable[[Path, Path], str]
RunJob = Callable[[Path], dict[str, Any]]
Files = dict[str, tuple[bytes, int]]  # content and mtime by name


@pytest.fixture(scope="module")
def run_script() -> Iterator[RunScript]:
    """Return a function that runs a script with its cache at a path and returns what it printed."""
    need_module("torch")
    if not shutil.which("ninja"):
        unavailable("ninja is not installed")
    with loaded("import torch.utils.cpp_extension") as run:

        def run_script(script: Path, cache: Path) -> str:
            environment = {"PATH": "/usr/bin:/bin", "HOME": str(cache.parent), **PROFILE.environment(str(cache), str)}
            done = run([str(script)], environment)
            assert done.returncode == 0, done.stderr
            return done.stdout

        yield run_script


@pytest.fixture(scope="module")
def run_job(run_script: RunScript) -> RunJob:
    """Return a function that runs the job with its cache at a path and returns the line that it prints."""
    return lambda cache: json.loads(run_script(JOB, cache).splitlines()[-1])


@pytest.fixture(scope="module")
def cache(run_job: RunJob, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the cache of a job that built the extension. Tests put their files there."""
    cache = tmp_path_factory.mktemp("extension") / "cache"
    assert run_job(cache)["cache_misses"] == 1
    (cache / PROFILE.name / "answer" / "lock").touch()  # as a job that was killed leaves it
    return cache


@pytest.fixture(scope="module")
def built(cache: Path) -> Files:
    """Return the files that the profile takes from that cache."""
    directory = cache / PROFILE.name
    names = [path.relative_to(directory).as_posix() for path in directory.rglob("*") if path.is_file()]
    taken = [name for name in names if PROFILE.entry_of(name)]
    return {name: ((directory / name).read_bytes(), (directory / name).stat().st_mtime_ns) for name in taken}


def restore(cache: Path, files: Files, mtime: Callable[[int], int]) -> None:
    """Put only the harvested files where a job's cache is."""
    shutil.rmtree(cache, ignore_errors=True)
    for name, (content, mtime_ns) in files.items():
        path = cache / PROFILE.name / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        os.utime(path, ns=(mtime(mtime_ns), mtime(mtime_ns)))


def verdict(cache: Path, files: Files) -> str | None:
    """Return the judge's verdict on the extension's files."""
    restore(cache, files, int)
    fd = os.open(cache / PROFILE.name, os.O_RDONLY)
    try:
        return judge(PROFILE.name, fd, {"answer": list(files)})["answer"]
    finally:
        os.close(fd)


RUNS = {"here": "constant", "elsewhere": "17.0a1b2c3d"}
INLINE = """
from torch.utils.cpp_extension import load_inline
load_inline("inline", "int answer() { return 42; }", no_implicit_headers=True, is_python_module=False)
"""


def test_a_source_that_was_built_at_a_runs_own_path_is_refused(run_script: RunScript, tmp_path: Path) -> None:
    (tmp_path / "inline.py").write_text(INLINE)
    places = {}
    for name, run in RUNS.items():
        run_script(tmp_path / "inline.py", tmp_path / run / "cache")
        places[name] = tmp_path / run / "cache" / PROFILE.name
    shown = {}
    for name, directory in places.items():
        assert str(directory / "inline" / "main.cpp") in (directory / "inline" / "build.ninja").read_text()
        files = [path.relative_to(directory).as_posix() for path in directory.rglob("*") if path.is_file()]
        with opened_dir(str(directory)) as fd:
            shown[name] = judge(PROFILE.name, fd, {"inline": [file for file in files if PROFILE.entry_of(file)]})
    assert shown == {"here": {"inline": None}, "elsewhere": {"inline": "made-elsewhere"}}


@pytest.mark.parametrize("mtime", [int, lambda ns: ns // SECOND * SECOND], ids=["exact", "whole seconds"])
def test_what_is_harvested_is_found_built_at_the_same_path(
    run_job: RunJob, cache: Path, built: Files, mtime: Callable[[int], int]
) -> None:
    restore(cache, built, mtime)
    assert run_job(cache)["cache_hits"] == 1


def test_what_torch_left_is_valid(cache: Path, built: Files) -> None:
    names = ("answer.so", "extension_job.o", "build.ninja", ".ninja_log", ".ninja_deps")
    assert {*built} == {f"answer/{name}" for name in names}
    assert verdict(cache, built) is None
