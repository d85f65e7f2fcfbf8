"""A job that compiles with JAX on CPU and prints one JSON line with JAX's own cache counters.

A second process takes what it finds in JAX_COMPILATION_CACHE_DIR. Arguments are numbers, each of which makes a function
of its own.
"""

from __future__ import annotations

import os
import sys
import time

# Everything is worth keeping here: by default JAX keeps what took a second to compile.
os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"

import jax
import jax.numpy as jnp
from report import report

seen: dict[str, int] = {}
jax.monitoring.register_event_listener(lambda event, **_: seen.update({event: seen.get(event, 0) + 1}))
started = time.perf_counter()
for number in map(int, sys.argv[1:] or ["1"]):
    values = jax.jit(lambda x, number=number: jnp.sort(jnp.tanh(x @ x)).sum() * number)(jnp.ones((64, 64)))
    values.block_until_ready()
CACHE = "/jax/compilation_cache"
report(started, seen.get(f"{CACHE}/cache_hits", 0), seen.get(f"{CACHE}/cache_misses", 0))
