"""What a run with the real pyxis claims, and whether it is seen."""

from __future__ import annotations

import sys

SHOW = 'echo "cache=$WARMSTART_CACHE numba=$NUMBA_CACHE_DIR tmp=$TMPDIR"; ls -d $NUMBA_CACHE_DIR $TMPDIR'


class Failed(Exception):
    """What a line marked `!` claims was not seen."""


def check(claim: str, *, seen: bool) -> None:
    """Print a claim; `Failed` if it was not seen."""
    sys.stdout.write(f"! {claim}\n")
    sys.stdout.flush()
    if not seen:
        raise Failed(claim)
