"""The hot code: hooks load the same modules from one file, or from their own where it cannot serve."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from warmstart import hot

SAYING = ("line", "syslog")  # what says, also to syslog, that there is no job
REPOSITORY = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def prefix(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return an installation of this checkout's modules with a prolog; the hot code was made under another path."""
    prefix = tmp_path_factory.mktemp("prefix")
    release, destdir = prefix / "lib/warmstart/python", tmp_path_factory.mktemp("destdir")
    release.mkdir(parents=True)
    for place in (release, destdir):
        (place / "warmstart").symlink_to(REPOSITORY / "hooks/warmstart")
    build = "import sys; sys.path.insert(0, sys.argv[1]); from warmstart import hot_build; hot_build.build(sys.argv[1])"
    subprocess.run([sys.executable, "-ISXutf8", "-c", build, destdir], check=True)
    (destdir / hot.NAME).rename(release / hot.NAME)
    (prefix / "start").write_text((REPOSITORY / "hooks/warmstart/start.py").read_text())
    return prefix


def command(prefix: Path, script: str, *options: str) -> list[str]:
    """Return what the hook's shell script executes, with a script in place of start.py."""
    release = str(prefix / "lib/warmstart/python")
    return [sys.executable, "-ISXutf8", *options, str(prefix / script), "entry.prolog", str(prefix), release]


def _indented(code: str) -> str:
    """Return code to stand where start.py ends."""
    return code.replace("\n", "\n    ")


def opened(prefix: Path, then: str = "") -> set[str]:
    """Run the prolog, which ends without a job, and `then`; return our modules that were read from their own files."""
    hook = (prefix / "start").read_text().replace("os._exit(status)", f"{_indented(then)}\n    os._exit(status)")
    (prefix / "traced").write_text(hook)
    argv = command(prefix, "traced", "-v")
    done = subprocess.run(argv, check=True, capture_output=True, text=True, env={})
    assert "SLURM_JOB_ID is not set" in done.stderr
    files = re.findall(rf"^# code object from '?{prefix}/\S*/([a-z0-9_]+)\.", done.stderr, re.MULTILINE)
    return {*files} - {"__init__", *SAYING}


def test_hooks_read_one_file(prefix: Path) -> None:
    steps = "import warmstart.steps.seed, warmstart.seed.overlay, warmstart.steps.image, warmstart.ending.release"
    assert opened(prefix, steps) == {"hot"}


def test_other_modules_are_found_as_usual(prefix: Path) -> None:
    show = (
        "import warmstart.audit.line; import traceback, warmstart.policy.match as m\n"
        "try: m.including(None, '')\n"
        "except AttributeError: traceback.print_exc()"
    )
    (prefix / "shown").write_text(
        (prefix / "start").read_text().replace("os._exit(status)", f"{_indented(show)}\n    os._exit(0)")
    )
    done = subprocess.run(command(prefix, "shown"), check=True, capture_output=True, text=True)
    assert 'warmstart/policy/match.py", line' in done.stderr
    assert "known = policy.images.credentials" in done.stderr


@pytest.mark.parametrize("content", [None, b"", b"another Python's"])
def test_without_the_file_hooks_work(prefix: Path, content: bytes | None) -> None:
    file = prefix / "lib/warmstart/python" / hot.NAME
    before = file.read_bytes()
    file.unlink()
    if content is not None:
        file.write_bytes(content)
    try:
        assert {"prolog", "keys", "wire"} <= opened(prefix)
    finally:
        file.write_bytes(before)


def _flipped(content: bytes, at: int) -> bytes:
    """Return what a disk made of it: one bit is another."""
    return content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :]


@pytest.mark.report
@pytest.mark.parametrize(
    "damage",
    [
        lambda whole: whole[:100],
        lambda whole: whole[: len(whole) // 20],
        lambda whole: whole[:50_000] + bytes(len(whole) - 50_000),
        lambda whole: whole[:8] + bytes(len(whole) - 8),
        lambda whole: _flipped(whole, 5),
        lambda whole: _flipped(whole, 500),
        lambda whole: (
            whole[:20_000] + b"".join(_flipped(whole[at : at + 100], 0) for at in range(20_000, len(whole), 100))
        ),
    ],
    ids=["cut in the table", "cut", "zeros", "all zeros", "length", "table", "code"],
)
def test_a_damaged_file_switches_nothing_off(prefix: Path, damage: Callable[[bytes], bytes]) -> None:
    file = prefix / "lib/warmstart/python" / hot.NAME
    before = file.read_bytes()
    file.write_bytes(damage(before))
    try:
        assert {"prolog", "keys"} <= opened(prefix)
    finally:
        file.write_bytes(before)


@pytest.mark.report
@pytest.mark.parametrize(
    "cause", ["raise RuntimeError('first\\nsecond')", "import warmstart.gone", "import sys; sys.exit(7)"]
)
def test_what_ends_a_hook_is_said_to_syslog(prefix: Path, tmp_path: Path, cause: str) -> None:
    """Slurmd drops what a hook writes to stderr. One line: what, of which job, where, and what to do."""
    said = tmp_path / "said"
    logger = tmp_path / "logger"
    logger.write_text(f'#!/bin/sh\nprintf "%s\\n" "$@" >{said}\n')
    logger.chmod(0o755)
    start = (prefix / "start").read_text().replace("/usr/bin/logger", str(logger))
    failing = start.replace("        from warmstart import hot", f"        {cause}", 1)
    (prefix / "failing").write_text(failing)
    line = failing.splitlines().index(f"        {cause}") + 1
    done = subprocess.run(
        command(prefix, "failing"), check=False, capture_output=True, text=True, env={"SLURM_JOB_ID": "7"}
    )
    assert done.returncode == 0
    assert "Traceback" in done.stderr
    *options, words = said.read_text().splitlines()
    assert options == ["-t", "warmstart", "-p", "daemon.err"]
    assert words.startswith("warmstart: prolog of job 7 failed: ")
    assert words.endswith(f"({prefix}/failing:{line}); run warmstart doctor, or install warmstart anew")


def test_code_that_others_can_change_is_not_run(prefix: Path) -> None:
    """The release's directory tells, before anything of it is imported; no node drains."""
    release = prefix / "lib/warmstart/python"
    release.chmod(0o775)
    try:
        done = subprocess.run(command(prefix, "start"), check=True, capture_output=True, text=True, env={})
    finally:
        release.chmod(0o755)
    assert f"did nothing: others than root can change {release}" in done.stderr
    assert "SLURM_JOB_ID is not set" not in done.stderr
