"""A job that compiles the kinds of functions that its arguments name, and prints one JSON line of their results.

Each kind is defined when it is asked for, because ufuncs with types are compiled by their decorator. The environment
makes it a process like another job's: WARMSTART_SHIFT functions are compiled first, without a cache, so that Numba's
counter differs. WARMSTART_SNAPSHOTS is a directory that gets a copy of the cache after every file that Numba saved,
which is what a job leaves that is killed there; WARMSTART_KILL is the number of the file after which it kills itself.
"""

# Numba has types for `njit`, not for its ufuncs.
# mypy: disable-error-code="no-untyped-call,untyped-decorator"
from __future__ import annotations

import ctypes
import importlib.util
import json
import os
import shutil
import signal
import sys
from collections.abc import Callable
from typing import Any

import llvmlite.binding  # type: ignore[import-untyped]
import numba
import numpy as np
from numba.core.types import ExternalFunction
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Made = list[object]  # dispatchers and ufuncs


def kernel_and_wrapper() -> tuple[object, Made]:
    """Call a generalized ufunc of one signature: kernel and wrapper are cached apart."""

    @numba.guvectorize([(numba.float64[:], numba.float64[:])], "(n)->(n)", nopython=True, cache=True)
    def double(values: Floats, out: Floats) -> None:
        for i in range(values.shape[0]):
            out[i] = values[i] * 2.0

    return double(np.arange(3.0)).tolist(), []


def two_signatures() -> tuple[object, Made]:
    """Call a generalized ufunc of two signatures, given as text."""

    @numba.guvectorize(["void(float64[:],float64[:])", "void(int64[:],int64[:])"], "(n)->()", nopython=True, cache=True)
    def total(values: Floats, out: Floats) -> None:
        out[0] = 0
        for i in range(values.shape[0]):
            out[0] += values[i]

    return [float(total(np.arange(4.0))), int(total(np.arange(4)))], []


def parallel_gufunc() -> tuple[object, Made]:
    """Call a generalized ufunc for threads: a missing symbol aborts the process."""

    @numba.guvectorize([(numba.float64[:], numba.float64[:])], "(n)->(n)", target="parallel", nopython=True, cache=True)
    def square(values: Floats, out: Floats) -> None:
        for i in range(values.shape[0]):
            out[i] = values[i] * values[i]

    return square(np.arange(6.0).reshape(2, 3)).tolist(), []


def dynamic_gufunc() -> tuple[object, Made]:
    """Call a generalized ufunc that is compiled when it is called."""

    @numba.guvectorize("(n)->(n)", cache=True)
    def shift(values: Floats, out: Floats) -> None:
        for i in range(values.shape[0]):
            out[i] = values[i] + 1

    out = np.empty(3)
    shift(np.arange(3.0), out)
    return out.tolist(), []


def plain_ufunc() -> tuple[object, Made]:
    """Call a ufunc: its loop is not cached."""

    @numba.vectorize(["float64(float64)", "int64(int64)"], cache=True)
    def twice(value: float) -> float:
        return value * 2

    return [twice(np.arange(3.0)).tolist(), twice(np.arange(3)).tolist()], []


def two_types() -> tuple[object, Made]:
    """Call a function with two argument types, in an order that depends on the process."""

    @numba.njit(cache=True)
    def half_more(value: float) -> float:
        return value * 2 + 0.5

    values = [3, 3.75]
    if os.environ.get("WARMSTART_SHIFT"):
        values.reverse()
    return sorted(half_more(value) for value in values), [half_more]


@numba.njit(cache=True)
def factorial(number: int) -> int:
    return 1 if number < 2 else number * factorial(number - 1)


@numba.njit(cache=True)
def choose(n: int, k: int) -> int:
    result: int = factorial(n) // (factorial(k) * factorial(n - k))
    return result


def calls() -> tuple[object, Made]:
    return [choose(5, 2), factorial(6)], [choose, factorial]


def loops() -> tuple[object, Made]:
    """Call a function whose loop runs in threads: its kernel is linked into it."""

    @numba.njit(parallel=True, cache=True)
    def summed(values: Floats) -> float:
        result = 0.0
        for i in numba.prange(values.shape[0]):
            result += values[i] * 2.0
        return result

    return summed(np.arange(10.0)), [summed]


@numba.njit(cache=True)
def even(number: int) -> bool:
    if number == 0:
        return True
    result: bool = odd(number - 1)
    return result


@numba.njit(cache=True)
def odd(number: int) -> bool:
    if number == 0:
        return False
    result: bool = even(number - 1)
    return result


def mutual_recursion() -> tuple[object, Made]:
    """Call functions that call each other both ways: Numba can't load what it cached of them."""
    return bool(even(6)), [even, odd]


def größe() -> tuple[object, Made]:  # noqa: PLC2401 - what users write

    @numba.njit(cache=True)
    def Δt(value: float) -> float:  # noqa: N802, PLC2401 - what scientists write
        return value + 1.0

    return Δt(1.0), [Δt]


CPP_NAME = "_ZN4fast5twiceEd"
twice: Any = ExternalFunction(CPP_NAME, numba.float64(numba.float64))


def cpp_function() -> tuple[object, Made]:
    """Call a function of a C++ library by its mangled name; here the C library's `trunc` stands for it."""
    address = ctypes.cast(ctypes.CDLL("libm.so.6").trunc, ctypes.c_void_p).value or 0
    llvmlite.binding.add_symbol(CPP_NAME, address)

    @numba.njit(cache=True)
    def call(value: float) -> float:
        result: float = twice(value)
        return result

    return call(3.5), [call]


def from_file() -> Any:  # noqa: ANN401 - of a module that no checker sees
    """Call a function of a module that was loaded from a file, so that no import finds it."""
    spec = importlib.util.spec_from_file_location("loaded_from_file", __file__)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.two_types()


KINDS: dict[str, Callable[[], tuple[object, Made]]] = {
    kind.__name__: kind
    for kind in (
        kernel_and_wrapper, two_signatures, parallel_gufunc, dynamic_gufunc, plain_ufunc,
        two_types, calls, loops, mutual_recursion, größe, cpp_function, from_file,
    )
}  # fmt: skip


def after_each_save(act: Callable[[int], None]) -> None:
    """Have `act` called with their number after each file that Numba has put into place."""
    replace, saved = os.replace, 0

    def counting(source: str, target: str) -> None:
        nonlocal saved
        replace(source, target)
        if target.endswith((".nbi", ".nbc")):
            saved += 1
            act(saved)

    os.replace = counting  # type: ignore[assignment]


def main() -> None:
    """Run the kinds that the arguments name, and report."""
    if snapshots := os.environ.get("WARMSTART_SNAPSHOTS"):
        cache = os.environ["NUMBA_CACHE_DIR"]

        def copy(number: int) -> None:
            shutil.copytree(cache, f"{snapshots}/{number}")

        after_each_save(copy)
    if kill_after := int(os.environ.get("WARMSTART_KILL", "0")):

        def kill(number: int) -> None:
            if number == kill_after:
                os.kill(os.getpid(), signal.SIGKILL)

        after_each_save(kill)
    for _ in range(int(os.environ.get("WARMSTART_SHIFT", "0"))):
        numba.njit(lambda value: value)(1)
    results: dict[str, object] = {}
    made: Made = []
    for name in sys.argv[1:]:
        results[name], functions = KINDS[name]()
        made += functions
    stats = [function.stats for function in made]  # type: ignore[attr-defined]
    report = {
        "results": results,
        "cache_hits": sum(sum(one.cache_hits.values()) for one in stats),
        "cache_misses": sum(sum(one.cache_misses.values()) for one in stats),
    }
    print(json.dumps(report), flush=True)  # noqa: T201 - the job's output is its result


if __name__ == "__main__":
    main()
