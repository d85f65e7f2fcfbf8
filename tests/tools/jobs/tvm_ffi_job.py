"""A job that builds a C++ extension with tvm-ffi and prints one JSON line: a build is a miss, none a hit."""

from __future__ import annotations

import os
import time
from pathlib import Path

import tvm_ffi.cpp
from report import report

SOURCE = "int answer(int x) { return x + 42; }"

cache = Path(os.environ["TVM_FFI_CACHE_DIR"])
before = {path: path.stat().st_mtime_ns for path in cache.glob("answer_*/answer.so")}
started = time.perf_counter()
module = tvm_ffi.cpp.load_inline("answer", cpp_sources=SOURCE, functions="answer")
assert module.answer(1) == 43
built = before != {path: path.stat().st_mtime_ns for path in cache.glob("answer_*/answer.so")}
report(started, int(not built), int(built))
