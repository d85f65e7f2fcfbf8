"""Everything in `lean` means what its namesake in the standard library means."""

from __future__ import annotations

import contextlib
import errno
import fnmatch
import json
import os
import subprocess
import sys
import typing
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from warmstart import lean

HOOKS = Path(__file__).resolve().parents[2] / "hooks"
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)


class Ours(lean.NamedTuple):
    """A sample."""

    a: int
    b: str = "b"
    c: tuple[int, ...] = ()

    def doubled(self) -> int:
        return 2 * self.a


class Theirs(typing.NamedTuple):
    """The same sample."""

    a: int
    b: str = "b"
    c: tuple[int, ...] = ()


class Nothing(lean.NamedTuple):
    """A sample without fields, as steps without options have."""


def test_named_tuples_are_made_as_usual() -> None:
    made: Any = Ours(1, c=(2,))
    assert made == (1, "b", (2,))
    assert (made.a, made.b, made.c, made.doubled()) == (1, "b", (2,), 2)
    assert repr(made) == repr(Theirs(1, c=(2,))).replace("Theirs", "Ours")
    assert made._asdict() == Theirs(1, c=(2,))._asdict()
    assert made._replace(b="x") == Theirs(1, c=(2,))._replace(b="x")
    assert Ours._make([1, "", ()]) == (1, "", ())
    assert (Ours._fields, Ours._field_defaults) == (Theirs._fields, Theirs._field_defaults)
    assert (Ours.__match_args__, Ours.__bases__, Ours.__doc__) == (("a", "b", "c"), (tuple,), "A sample.")
    assert Nothing() == ()
    with pytest.raises(AttributeError):
        made.a = 2
    with pytest.raises(AttributeError):
        made.d = 2


@pytest.mark.parametrize("arguments", [((), {}), ((1, "", (), 4), {}), ((1,), {"a": 1}), ((1,), {"d": 1})])
def test_a_wrong_call_is_a_type_error(arguments: tuple[tuple[Any, ...], dict[str, Any]]) -> None:
    values, named = arguments
    for made in (Ours, Theirs):
        with pytest.raises(TypeError):
            made(*values, **named)


@given(JSON)
def test_json_is_that_of_the_library(value: object) -> None:
    assert lean.dumps(value) == json.dumps(value)
    options: dict[str, Any] = {"sort_keys": True, "separators": (",", ":")}
    assert lean.dumps(value, **options) == json.dumps(value, **options)
    assert lean.loads(lean.dumps(value)) == value
    assert lean.loads(f" \n{json.dumps(value)}\t ".encode()) == value


def test_numbers_that_json_lacks_are_written_as_the_library_does() -> None:
    values = [float("inf"), float("-inf"), float("nan"), 1e300]
    assert lean.dumps(values) == json.dumps(values)
    assert repr(lean.loads(lean.dumps(values))) == repr(json.loads(json.dumps(values)))
    assert lean.dumps([Path("/a")], default=str) == '["/a"]'
    with pytest.raises(TypeError):
        lean.dumps(Path("/a"))


TORN = [
    *("", " ", "{", '{"a"', '{"a":', '{"a":1', "[", "[1", "[1,", '["', '["a', "[1,]"),
    *("nul", "-", "1 2", '"\\u12', '"\n"'),
]


def test_what_is_no_json_is_a_value_error_in_a_hook_too() -> None:
    """The scanner knows its own error only where `json` is loaded, as pytest has it and a hook has not."""
    code = f"""if True:
        import sys; sys.path.insert(0, {str(HOOKS)!r})
        import warmstart.lean as lean
        for text in {TORN!r}:
            try:
                lean.loads(text)
            except ValueError:
                print("refused")
            else:
                print(repr(text))
    """
    done = subprocess.run([sys.executable, "-ISc", code], check=True, capture_output=True, text=True)
    assert done.stdout.splitlines() == ["refused"] * len(TORN)


Contextmanager = Callable[[Callable[[], Iterator[int]]], Callable[[], AbstractContextManager[int]]]


@pytest.mark.parametrize("error", [None, OSError("x"), StopIteration("x"), RuntimeError("x"), KeyboardInterrupt()])
@pytest.mark.parametrize("catches", [False, True])
@pytest.mark.parametrize("contextmanager", [lean.contextmanager, contextlib.contextmanager])
def test_context_managers_pass_errors_on(
    contextmanager: Contextmanager, error: BaseException | None, *, catches: bool
) -> None:
    ended = []

    @contextmanager
    def sample() -> Iterator[int]:
        try:
            yield 1
        except (OSError, RuntimeError):
            if not catches:
                raise
        finally:
            ended.append(True)

    raised = None
    try:
        with sample() as value:
            assert value == 1
            if error is not None:
                raise error
    except BaseException as found:  # noqa: BLE001
        raised = found
    caught = catches and isinstance(error, (OSError, RuntimeError))
    assert (raised, ended) == (None if caught else error, [True])


def test_the_c_library_is_called() -> None:
    assert lean.libc("getpid") == os.getpid()
    assert lean.libc("access", b"/", os.R_OK) == 0
    with pytest.raises(OSError, match="No such file") as raised:
        lean.libc("access", b"/nonexistent", os.R_OK, subject="/nonexistent")
    assert (raised.value.errno, raised.value.filename) == (errno.ENOENT, "/nonexistent")


def test_it_loads_none_of_them() -> None:
    code = f"import sys; sys.path.insert(0, {str(HOOKS)!r}); import warmstart.lean as l; l.libc('getpid'); l.sha256()"
    argv = [sys.executable, "-IS", "-c", f"{code}; print(*sys.modules)"]
    found = set(subprocess.run(argv, check=True, capture_output=True, text=True).stdout.split())
    originals = {"typing", "json", "re", "enum", "functools", "collections", "contextlib", "ctypes", "hashlib"}
    assert not found & originals


@given(st.text(st.sampled_from("ab-.[]*?!^é\n"), max_size=8), st.text(st.sampled_from("ab-.*!^é\n"), max_size=6))
def test_a_glob_fits_what_it_usually_does(name: str, glob: str) -> None:
    assert lean.fnmatchcase(name, glob) == fnmatch.fnmatchcase(name, glob)
