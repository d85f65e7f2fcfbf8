"""Numba: the files of a function are what one process wrote (docs/cache-formats.md, Numba).

Nothing is locked, and processes that compile at once both take the number 1. They may leave the index of one and the
data of the other, which Numba calls without a look at their types; or a kernel and the other's wrapper (`guf-…`), which
looks the kernel up by a name with a counter of its process: the job dies. So all files of a function are one entry.

Pickles are read with stand-ins for all that they name: nothing is imported, nothing called.
"""

from __future__ import annotations

import io
import pickle
import re
from typing import NamedTuple, TypeGuard

from warmstart.profiles.entry_files import EntryFiles, EntryInvalid
from warmstart.profiles.formats import LARGEST_PICKLE, walk_pickles

_MOST_OPCODES = 1 << 15  # real files have some hundreds; what is nested deeper could end the process
_WRAPPERS = "guf-"  # before the name of a kernel's index: that of its wrappers
_WRAPPER = b"__gufunc__."  # before the name of a kernel: its wrapper
_KERNEL = re.compile(rb"_ZN[\w.$]+(?=\0)")  # a name in an object's table
_RECURSION = b".numba.unresolved$"  # before a function that only a compilation connects: SIGSEGV in any later process
_NO_MODULE = "<dynamic>"  # a module that Numba could not import: ImportError in any later process
_ADDRESS = re.compile(r"0x[0-9a-f]+|#[0-9a-f]+|[0-9]{9,}")  # in types' names: of the process that wrote a file last


class _StandIn:
    """For an instance of whatever class, or the result of whatever function, a pickle names."""

    name = ""
    arguments: tuple[object, ...] = ()
    state: object = None

    def __new__(cls, *arguments: object) -> _StandIn:
        made = object.__new__(cls)
        made.arguments = arguments
        return made

    def __call__(self, *arguments: object) -> _StandIn:  # of numba-cuda's files
        return _StandIn(*arguments)

    def __setstate__(self, state: object) -> None:
        self.state = state


class _Reader(pickle._Unpickler):  # noqa: SLF001 - the one in Python: hostile bytes find no C code
    def find_class(self, _module: str, name: str) -> type[_StandIn]:
        return type("StandIn", (_StandIn,), {"name": name})


class _Index(NamedTuple):
    source: tuple[object, object]  # Numba's version; the source's stamp
    data: dict[object, str]  # key → name of the data file


class _Data(NamedTuple):
    is_library: bool  # code alone, as wrappers are; else the result of a compilation
    signature: tuple[str, ...] | None  # the argument types that it was compiled for, where they can be told
    content: bytes


def check(files: EntryFiles) -> None:
    """Raise `EntryInvalid` unless each index fits its data, and each wrapper its kernel."""
    folder = files.entry.rpartition("/")[0] + "/"
    names = [name.removeprefix(folder) for name in files.names]
    indexes = {name.removesuffix(".nbi"): _index(files, folder + name) for name in names if name.endswith(".nbi")}
    data = {name: _data(files, folder + name) for name in names if name.endswith(".nbc")}
    if {_stem(name) for name in data} != indexes.keys():
        raise EntryInvalid("incomplete")
    for stem, index in indexes.items():
        if not index.data or not {name for name in data if _stem(name) == stem}.issuperset(index.data.values()):
            raise EntryInvalid("incomplete")
        for key, name in index.data.items():
            wanted = _types_of(key)  # None of explicit types, a text: all processes compile those in the same order
            if None not in (wanted, data[name].signature) and wanted != data[name].signature:
                raise EntryInvalid("two-writers")
            if data[name].is_library:
                _check_wrapper(wanted, data[name], index, indexes.get(stem.removeprefix(_WRAPPERS)), data)


def _stem(data_name: str) -> str:
    return data_name.removesuffix(".nbc").rpartition(".")[0]  # without `.<n>.nbc`


def _check_wrapper(
    wanted: tuple[str, ...] | None, wrapper: _Data, index: _Index, kernels: _Index | None, data: dict[str, _Data]
) -> None:
    """Require that a wrapper is that of the kernel which is found under the same types."""
    compiled = [data[name] for name in kernels.data.values() if name in data] if kernels else []
    candidates = [each for each in compiled if not each.is_library and wanted in (None, each.signature)]
    if not candidates or kernels is None:
        raise EntryInvalid("incomplete")
    wrapped = (_WRAPPER + name + b"\0" for each in candidates for name in _KERNEL.findall(each.content))
    if kernels.source != index.source or not any(name in wrapper.content for name in wrapped):
        raise EntryInvalid("two-writers")


def _index(files: EntryFiles, name: str) -> _Index:
    (version, content), _ = _read(files, name, 2)
    match content:
        case (stamp, dict() as data) if all(isinstance(value, str) for value in data.values()):
            return _Index((version, stamp), data)
    raise EntryInvalid("pickle-malformed")


def _data(files: EntryFiles, name: str) -> _Data:
    (value,), content = _read(files, name, 1)
    parts = tuple(value.values()) if isinstance(value, dict) else value if isinstance(value, tuple) else ()
    nested = [one for part in parts for one in (part if isinstance(part, tuple) else (part,))]
    if _RECURSION in content or any(_is(one, "_rebuild_env") and one.arguments[:1] == (_NO_MODULE,) for one in nested):
        raise EntryInvalid("not-loadable")
    signature = next((part for part in parts if _is(part, "Signature")), None)
    is_library = isinstance(value, tuple) and len(value) == 3 and isinstance(value[0], str) and value[1] == "object"
    return _Data(is_library, _types_of((signature,)), content)


def _read(files: EntryFiles, name: str, count: int) -> tuple[list[object], bytes]:
    """Return the values of the pickles that a file is, and its bytes."""
    data = files.read(name, LARGEST_PICKLE)
    if walk_pickles(data, count) > _MOST_OPCODES:
        raise EntryInvalid("too-large")
    file = io.BytesIO(data)
    try:
        return [_Reader(file).load() for _ in range(count)], data
    except Exception as error:
        raise EntryInvalid("pickle-malformed") from error


def _types_of(key: object) -> tuple[str, ...] | None:
    """Return the types of a key's first part, a signature or a tuple of types; None where they can't be told."""
    value = key[0] if isinstance(key, tuple) and key else None
    if _is(value, "Signature") and isinstance(value.state, tuple):
        value = value.state[1] if len(value.state) > 1 else None
    names = [_type_name(part) for part in value] if isinstance(value, tuple) else [""]
    return tuple(names) if all(names) else None


def _type_name(value: object) -> str:
    """Return a type's class and name; "" where it can't be told. Not its code, which is a counter of the process."""
    if _is(value, "_type_reconstructor"):
        match value.arguments:
            case (_, (made, *_), {"name": str() as name}) if isinstance(made, type) and issubclass(made, _StandIn):
                return f"{made.name} {_ADDRESS.sub('@', name)}"
    return ""


def _is(value: object, name: str) -> TypeGuard[_StandIn]:
    return isinstance(value, _StandIn) and value.name == name
