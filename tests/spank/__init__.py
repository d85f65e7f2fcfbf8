"""The SPANK plugin: in a program of its own, so that checkers of memory can watch it, and in a cluster."""

from __future__ import annotations

import shutil
import subprocess
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from tests.support.requirements import unavailable

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.cluster.site import Site

_HERE = Path(__file__).resolve().parent
_PLUGIN = _HERE.parents[1] / "packaging" / "spank"
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
def loaded(site: Site) -> Iterator[None]:
    """Build the plugin as an admin does and load it: commands and steps read plugstack.conf each time."""
    library = site.cluster.base / "warmstart.so"
    plugstack = site.cluster.base / "etc" / "plugstack.conf"
    root = _HERE.parents[1]
    argv = ["/usr/bin/make", "-s", "-C", str(root), "spank", f"PREFIX={site.cluster.prefix}"]
    subprocess.run(argv, check=True, capture_output=True)
    # A step may have the one before mapped: never written in place.
    shutil.copy(root / "build" / "spank" / "warmstart.so", f"{library}.new")
    Path(f"{library}.new").rename(library)
    plugstack.write_text(f"optional {library} workspace={site.workspace} cache={site.constant}\n")
    try:
        yield
    finally:
        plugstack.write_text("")
