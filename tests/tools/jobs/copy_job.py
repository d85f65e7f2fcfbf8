"""A job that stands in for one that compiles with Numba, in tests of what becomes of a cache.

It copies those entries in Numba's format that its cache lacks from the directory `entries` beside it, and reports as
Numba's jobs do. Importing Numba takes longer than most such tests.
"""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path

from report import report

ENTRIES = Path(__file__).with_name("entries")  # the site writes them

started, found = time.perf_counter(), 0
indexes = list(ENTRIES.glob("*/*.nbi"))
cache = Path(os.environ["NUMBA_CACHE_DIR"])
for index in indexes:
    if (cache / index.relative_to(ENTRIES)).exists():
        found += 1
        continue
    for file in index.parent.glob(f"{index.stem}.*"):
        target = cache / file.relative_to(ENTRIES)
        target.parent.mkdir(exist_ok=True)
        shutil.copyfile(file, target)
report(started, found, len(indexes) - found)
