"""A job that builds a C++ extension with torch and prints one JSON line: a build is a miss, none a hit.

The source needs one small header of torch, so that a build is quick. ninja decides; its log says what it did.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

from torch.utils.cpp_extension import load


def main() -> None:
    """Build, load, and report."""
    directory = Path(os.environ["TORCH_EXTENSIONS_DIR"]) / "answer"
    source = Path(__file__).with_name("extension_job.cpp")
    library = directory / "answer.so"
    before = library.stat().st_mtime_ns if library.exists() else 0
    started = time.perf_counter()
    load("answer", [str(source)], is_python_module=False)
    built = library.stat().st_mtime_ns != before
    report = {
        "tool": "torch-extensions",
        "seconds": round(time.perf_counter() - started, 3),
        "cache_hits": int(not built),
        "cache_misses": int(built),
    }
    print(json.dumps(report), flush=True)  # noqa: T201 - the job's output is its result


if __name__ == "__main__":
    main()
