"""What Numba's files say of each other: symbols, indexes, and the wrapper of a kernel."""

from __future__ import annotations

import pickle
import struct

import pytest

from tests.lib.cache_files import NUMBA_DATA, NUMBA_INDEX, numba_files, relocatable
from tests.lib.judging import Judge


@pytest.mark.parametrize(
    "name",
    [
        b"memset", b"NRT_decref", b"_Py_NoneStruct", b"numba_do_raise", b"sin", b"do_scheduling_unsigned", b"my_c",
        b"_ZN4fast5twiceEd", b"_Z1fi", b"_ZSt4cout", b"_ZTVN10__cxxabiv117__class_type_infoE",
        b"_ZNKSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEE4sizeB5cxx11Ev",
    ],
)  # fmt: skip
def test_code_may_call_c_functions(verdict: Judge, name: bytes) -> None:
    data = pickle.dumps((b"key", relocatable(b"code", [b"_ZN4mod1fE"], [name])), 5)
    assert verdict("numba", {**numba_files(1), NUMBA_DATA: data}) is None


@pytest.mark.parametrize(
    "name",
    [
        b"_ZN4mod1gB2v7E",
        b"_ZN4mod1gB4v123B2c8Ei",
        b"_ZN08NumbaEnv4mod1gB2v7E",
        b".numba.unresolved$_ZN4mod1gE",
        b"__gufunc__._ZN4mod1gE",
        b"cfunc._ZN4mod1gE",
        b"a b",
        b"\xff",
    ],
)
def test_code_that_calls_another_entry_is_refused(verdict: Judge, name: bytes) -> None:
    """No other file is loaded with it: Numba would end the process, or jump to nothing."""
    data = pickle.dumps((b"key", relocatable(b"code", [b"_ZN4mod1fE"], [b"memset", name])), 5)
    assert verdict("numba", {**numba_files(1), NUMBA_DATA: data}) == "undefined-symbol"


class Environment:
    """Pickled as Numba's environments are."""

    def __init__(self, module: str) -> None:
        self.module = module

    def __reduce__(self) -> tuple[object, tuple[str, list[int], str]]:
        return _rebuild_env, (self.module, [], "name")


def _rebuild_env(module: str, consts: list[int], name: str) -> None:
    """Stand for Numba's function of this name."""


@pytest.mark.parametrize("own", [True, False])
def test_a_function_without_a_module_is_refused(verdict: Judge, own: bool) -> None:
    """Its own, or one that is compiled into it: loading imports `<dynamic>`, which is no module."""
    for module, reason in (("<dynamic>", "not-importable"), ("<run_path>", None), ("mod", None)):
        first, others = Environment(module if own else "mod"), (Environment("other"), Environment(module))
        data = pickle.dumps((("f", "object", (relocatable(), b"bitcode")), "descriptor", first, others), 5)
        assert verdict("numba", {**numba_files(1), NUMBA_DATA: data}) == reason


def test_symbols_out_of_proportion_are_refused(verdict: Judge) -> None:
    """Names of symbols may overlap: a small table of long names would fill the memory."""
    plain = relocatable(b"code", [b"x" * 60_000])
    symbols = struct.pack("<IBBHQQ", 1, 0x12, 0, 1, 0, 0)
    (table,) = struct.unpack_from("<Q", plain, 40)
    grown = bytearray(plain)
    grown += symbols * 400
    # The section of symbols: its offset and size, then that it is all of the new ones.
    struct.pack_into("<QQ", grown, table + 3 * 64 + 24, len(plain), 24 * 400)
    data = pickle.dumps((b"key", bytes(grown)), 5)
    assert verdict("numba", {**numba_files(1), NUMBA_DATA: data}) == "too-large"


@pytest.mark.parametrize("content", [("stamp",), ("stamp", [1]), ["stamp", {}], ("stamp", {"key": 1})])
def test_an_index_of_another_form_is_refused(verdict: Judge, content: object) -> None:
    """Stamp and names of data files: what is not that can't be looked through."""
    index = pickle.dumps("0.68") + pickle.dumps(content)
    assert verdict("numba", {**numba_files(1), NUMBA_INDEX: index}) == "field-malformed"


def library(*defined: bytes) -> bytes:
    return pickle.dumps(("f", "object", (relocatable(b"code", defined), b"bitcode")), 5)


def gufunc(kernel: bytes, wrapper: bytes, stamp: str = "stamp" * 12) -> dict[str, bytes]:
    """Return a kernel and a wrapper by the functions that they define."""
    folder, _, stem = NUMBA_INDEX.removesuffix(".nbi").rpartition("/")
    index = pickle.dumps("0.68.1") + pickle.dumps((stamp, {("array", 1): f"guf-{stem}.1.nbc"}))
    return {
        **numba_files(1),
        NUMBA_DATA: pickle.dumps((("f", "object", (relocatable(b"code", [kernel]), b"bitcode")), "rest"), 5),
        f"{folder}/guf-{stem}.nbi": index,
        f"{folder}/guf-{stem}.1.nbc": library(wrapper),
    }


def test_a_wrapper_is_of_its_kernel(verdict: Judge) -> None:
    assert verdict("numba", gufunc(b"_ZN1m1fB2v7E", b"__gufunc__._ZN1m1fB2v7E")) is None
    assert verdict("numba", gufunc(b"_ZN1m1fB2v7E", b"__gufunc__._ZN1m1fB2v8E")) == "two-writers"
    assert verdict("numba", gufunc(b"_ZN1m1fB2v7E", b"__gufunc__._ZN1m1fB2v7E", "older")) == "two-writers"


def test_a_wrapper_alone_is_refused(verdict: Judge) -> None:
    """Whatever it is called: the kernel that it is for is compiled anew, under another name."""
    files = gufunc(b"_ZN1m1fB2v7E", b"__gufunc__._ZN1m1fB2v7E")
    alone = {name: data for name, data in files.items() if "guf-" in name}
    assert verdict("numba", alone) == "incomplete"
    assert verdict("numba", {**numba_files(1), NUMBA_DATA: library(b"__gufunc__._ZN1m1fB2v7E")}) == "incomplete"


def test_a_namesake_of_a_wrapper_is_a_function(verdict: Judge) -> None:
    files = gufunc(b"_ZN1m1fB2v7E", b"__gufunc__._ZN1m1fB2v7E")
    (wrapper,) = (name for name in files if "guf-" in name and name.endswith(".nbc"))
    assert verdict("numba", {**files, wrapper: files[NUMBA_DATA]}) is None
