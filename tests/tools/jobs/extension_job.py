"""A job that builds a C++ extension with torch and prints one JSON line: a build is a miss, none a hit.

The source needs one small header of torch, so that a build is quick. ninja decides; its log says what it did.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

from report import report
from torch.utils.cpp_extension import load

directory = Path(os.environ["TORCH_EXTENSIONS_DIR"]) / "answer"
source = Path(__file__).with_name("extension_job.cpp")
library = directory / "answer.so"
before = library.stat().st_mtime_ns if library.exists() else 0
started = time.perf_counter()
load("answer", [str(source)], is_python_module=False)
built = library.stat().st_mtime_ns != before
report(started, int(not built), int(built))
