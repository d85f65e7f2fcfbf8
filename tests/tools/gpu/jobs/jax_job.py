"""A job that compiles with JAX for the GPU. JAX counts its cache's hits."""

from __future__ import annotations

import os
import time

# Everything is worth keeping here: by default JAX keeps what took a second to compile.
os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"
os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")

import jax
import jax.numpy as jnp
import numpy as np
from report import report

assert jax.devices()[0].platform != "cpu", "JAX sees no GPU"
seen: dict[str, int] = {}
jax.monitoring.register_event_listener(lambda event, **_: seen.update({event: seen.get(event, 0) + 1}))
started = time.perf_counter()
found = jax.jit(lambda x: jnp.sort(jnp.tanh(x @ x), axis=0).cumsum(axis=1))(jnp.linspace(0, 1, 65536).reshape(256, 256))
found.block_until_ready()
report(
    time.perf_counter() - started,
    np.asarray(found).tobytes(),
    packages=("jax", "jaxlib"),
    hits=seen.get("/jax/compilation_cache/cache_hits", 0),
    misses=seen.get("/jax/compilation_cache/cache_misses", 0),
)
