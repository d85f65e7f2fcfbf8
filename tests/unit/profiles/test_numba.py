"""What Numba's files say of each other. Mixtures of real runs are in tests/node/test_numba_entries."""

from __future__ import annotations

import pickle

import pytest

from tests.lib.cache_files import NUMBA_DATA, NUMBA_INDEX, numba_files, relocatable
from tests.lib.judging import Judge

KERNEL, OTHER = b"_ZN1m1fB2v7E", b"_ZN1m1fB2v8E"


class Environment:
    """Pickled as Numba's environments are."""

    def __init__(self, module: str) -> None:
        self.module = module

    def __reduce__(self) -> tuple[object, tuple[str, list[int], str]]:
        return _rebuild_env, (self.module, [], "name")


def _rebuild_env(module: str, consts: list[int], name: str) -> None:
    """Stand for Numba's function of this name."""


@pytest.mark.parametrize("own", [True, False])
def test_a_function_without_a_module_is_refused(verdict: Judge, *, own: bool) -> None:
    """Its own, or one that is compiled into it: loading imports `<dynamic>`, which is no module."""
    for module, reason in (("<dynamic>", "not-loadable"), ("<run_path>", None), ("mod", None)):
        first, others = Environment(module if own else "mod"), (Environment("other"), Environment(module))
        data = pickle.dumps((("f", "object", (relocatable(), b"bitcode")), "descriptor", first, others), 5)
        assert verdict("numba", {**numba_files(1), NUMBA_DATA: data}) == reason


def test_a_function_that_only_a_compilation_connects_is_refused(verdict: Judge) -> None:
    called = relocatable(b"code", [b"_ZN4mod1fE"], [b"memset", b".numba.unresolved$_ZN4mod1gE"])
    assert verdict("numba", {**numba_files(1), NUMBA_DATA: pickle.dumps((b"key", called), 5)}) == "not-loadable"


@pytest.mark.parametrize("content", [("stamp",), ("stamp", [1]), {"stamp": {}}, ("stamp", {"key": 1})])
def test_an_index_of_another_form_is_refused(verdict: Judge, content: object) -> None:
    index = pickle.dumps("0.68") + pickle.dumps(content)
    assert verdict("numba", {**numba_files(1), NUMBA_INDEX: index}) == "pickle-malformed"


@pytest.mark.threat(30)
def test_what_is_nested_too_deep_does_not_end_the_validator(verdict: Judge) -> None:
    """As a key, whose hash the interpreter takes by recursion."""
    deep = b"\x80\x04}N" + b"\x85" * 32_700 + b"Ns."
    assert verdict("numba", {**numba_files(1), NUMBA_DATA: deep}) in {None, "pickle-malformed"}
    deeper = b"\x80\x04}N" + b"\x85" * 1_000_000 + b"Ns."
    assert verdict("numba", {**numba_files(1), NUMBA_DATA: deeper}) == "too-large"


def library(*defined: bytes) -> bytes:
    return pickle.dumps(("f", "object", (relocatable(b"code", defined), b"bitcode")), 5)


def gufunc(wrapper: bytes, stamp: str = "stamp" * 12) -> dict[str, bytes]:
    """Return a kernel and a wrapper by the function that it defines."""
    folder, _, stem = NUMBA_INDEX.removesuffix(".nbi").rpartition("/")
    index = pickle.dumps("0.68.1") + pickle.dumps((stamp, {("array", 1): f"guf-{stem}.1.nbc"}))
    return {
        **numba_files(1),
        NUMBA_DATA: pickle.dumps((("f", "object", (relocatable(b"code", [KERNEL]), b"bitcode")), "rest"), 5),
        f"{folder}/guf-{stem}.nbi": index,
        f"{folder}/guf-{stem}.1.nbc": library(wrapper),
    }


def test_a_wrapper_is_of_its_kernel(verdict: Judge) -> None:
    assert verdict("numba", gufunc(b"__gufunc__." + KERNEL)) is None
    assert verdict("numba", gufunc(b"__gufunc__." + OTHER)) == "two-writers"
    assert verdict("numba", gufunc(b"__gufunc__." + KERNEL + b"x")) == "two-writers"
    assert verdict("numba", gufunc(b"__gufunc__." + KERNEL, "older")) == "two-writers"


def test_a_wrapper_alone_is_refused(verdict: Judge) -> None:
    """Whatever it is called: the kernel that it is for is compiled anew, under another name."""
    alone = {name: data for name, data in gufunc(b"__gufunc__." + KERNEL).items() if "guf-" in name}
    assert verdict("numba", alone) == "incomplete"
    assert verdict("numba", {**numba_files(1), NUMBA_DATA: library(b"__gufunc__." + KERNEL)}) == "incomplete"
