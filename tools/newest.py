"""Say which tools have newer releases than those that their profiles were read at: `python -m tools.newest`.

Asks the registry by pip, so it needs a network. Read what it prints, and where a tool's cache has changed, its profile
and docs/cache-formats.md; then raise the release in `READ`. Ends with status 1 if a release has moved or is unknown.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable, Iterator

# Profile → distributions, with the release whose source or files its page of docs/cache-formats.md is about.
READ: dict[str, dict[str, str]] = {
    "cuda-computecache": {},  # the driver's; no release of its own
    "cudnn-frontend": {"nvidia-cudnn-frontend": "1.32.0"},
    "cupy": {"cupy-cuda13x": "14.2.0"},
    "cute-dsl": {"quack-kernels": "0.6.5", "nvidia-cutlass-dsl": "4.8.1"},
    "deepgemm": {},  # read in its git
    "flashinfer": {"flashinfer-python": "0.7.2.post1"},
    "helion": {"helion": "1.5.1"},
    "hybrid-ep": {"nemo-automodel": "0.7.0"},
    "inductor": {"torch": "2.15.0"},
    "jax": {"jax": "0.12.0.1"},
    "numba": {"numba": "0.68.1", "numba-cuda": "0.30.4"},
    "sglang": {"sglang": "0.5.23"},
    "tilelang": {"tilelang": "0.1.15"},
    "torch-extensions": {"torch": "2.15.0"},
    "triton": {"triton": "3.9.0"},
    "trt-rtx": {"torch-tensorrt": "2.14.0"},
    "tvm-ffi": {"apache-tvm-ffi": "0.1.15.post2"},
    "vllm": {"vllm": "0.33.0"},
    "warp": {"warp-lang": "1.19.0"},
}


def newest(distribution: str) -> str:
    """Return the newest release that pip finds, "" if it finds none."""
    # Not the one that runs this: some tools no longer support the oldest that Debian has.
    argv = [sys.executable, "-m", "pip", "index", "versions", distribution, "--python-version", "3.13"]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    found = re.match(r"\S+ \(([^)\s]+)\)", done.stdout)
    return found[1] if found else ""


def moved(find: Callable[[str], str]) -> Iterator[tuple[str, str, str, str]]:
    """Yield profile, distribution, the release that was read, and the newest, of those that differ."""
    for profile, distributions in READ.items():
        for distribution, read in distributions.items():
            if (now := find(distribution)) != read:
                yield profile, distribution, read, now or "unknown: pip finds none"


def main() -> int:
    """Print a line for each release that has moved."""
    status = 0
    for profile, distribution, read, now in moved(newest):
        sys.stdout.write(f"{profile}: {distribution} was read at {read}; the newest is {now}\n")
        status = 1
    return status


if __name__ == "__main__":
    sys.exit(main())
