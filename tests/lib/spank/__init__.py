"""The SPANK plugin: in a program of its own, so that checkers of memory can watch it, and in a cluster."""

from __future__ import annotations

import fcntl
import os
import shutil
import socket
import struct
import subprocess
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryFile
from typing import TYPE_CHECKING, NamedTuple, TextIO

from tests.lib.requirements import unavailable

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.lib.site import Site


class Harness(NamedTuple):
    """A harness that forks for each run: a checker of memory, which may be slow to start, is started once."""

    calls: socket.socket
    stdout: TextIO
    stderr: TextIO

    def run(self, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        """Run it once, with these arguments and this environment. Its checker's words are on its stderr."""
        strings = (*arguments, "", *(f"{name}={value}" for name, value in environment.items()))
        for file in (self.stdout, self.stderr):
            file.seek(0)
            file.truncate()
        self.calls.send(b"".join(os.fsencode(string) + b"\0" for string in strings))
        (status,) = struct.unpack("i", self.calls.recv(4))
        for file in (self.stdout, self.stderr):
            file.seek(0)
        returncode = os.waitstatus_to_exitcode(status)
        return subprocess.CompletedProcess(arguments, returncode, self.stdout.read(), self.stderr.read())


_HERE = Path(__file__).resolve().parent
_PLUGIN = _HERE.parents[2] / "packaging" / "spank"
_STRICT = ["-std=gnu11", "-g", "-O1", "-Wall", "-Wextra", "-Werror", "-Wconversion", "-Wshadow"]
_SANITIZERS = ["-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-fno-omit-frame-pointer"]


def missing() -> str:
    """Say what this host lacks to build the plugin; empty where it lacks nothing."""
    if shutil.which("cc") is None:
        return "no C compiler"
    return "" if Path("/usr/include/slurm/spank.h").is_file() else "no Slurm headers (Debian: libslurm-dev)"


def need() -> None:
    """Require what builds the plugin."""
    if wanting := missing():
        unavailable(wanting)


def build(directory: Path, *, sanitize: bool) -> Path:
    """Build the harness in `directory`; returns the program. Raises CalledProcessError where that fails."""
    program = directory / ("harness-sanitized" if sanitize else "harness")
    sources = [str(source) for source in (*sorted(_PLUGIN.glob("*.c")), _HERE / "harness.c")]
    flags = [*_STRICT, *(_SANITIZERS if sanitize else []), "-I", str(_PLUGIN)]
    subprocess.run(["cc", *flags, "-o", str(program), *sources], check=True, capture_output=True, text=True)
    return program


@contextmanager
def served(program: Path, *checker: str) -> Iterator[Harness]:
    """Start a built harness below a checker's command. It must end with nothing to complain of itself."""
    ours, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with TemporaryFile("w+") as stdout, TemporaryFile("w+") as stderr:
        with its:
            argv = [*checker, str(program), "serve"]
            environment = {"ASAN_OPTIONS": "detect_leaks=1"}
            server = subprocess.Popen(argv, stdin=its.fileno(), stdout=stdout, stderr=stderr, env=environment, cwd="/")
        with server, ours:  # which ends it
            yield Harness(ours, stdout, stderr)
    assert server.returncode == 0


@contextmanager
def loaded(site: Site) -> Iterator[None]:
    """Load the plugin, built once per cluster as an admin does: commands and steps read plugstack.conf each time."""
    library = site.cluster.base / "warmstart.so"
    plugstack = site.cluster.plugstack
    root = _HERE.parents[2]
    if not library.exists():
        argv = ["/usr/bin/make", "-s", "-C", str(root), "spank", f"PREFIX={site.cluster.prefix}"]
        with (root / "Makefile").open() as lock:  # each process of tests has a prefix of its own
            fcntl.flock(lock, fcntl.LOCK_EX)
            subprocess.run(argv, check=True, capture_output=True)
            shutil.copy(root / "build" / "spank" / "warmstart.so", library)
    plugstack.write_text(f"optional {library} workspace={site.workspace}\n")
    try:
        yield
    finally:
        plugstack.write_text("")
