"""Check that the files of one function are what one process of Numba wrote (docs/cache-formats.md, Numba).

Nothing is unpickled: indexes and data are read as inert parts (`pickle_framing`), objects by their symbol tables.
numba-cuda keeps kernels for GPUs in the same files, with a cubin in the place of the object.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from warmstart.profiles.entry_files import EntryFiles, EntryInvalid
from warmstart.profiles.formats import elf, pickle_framing
from warmstart.profiles.formats.pickle_framing import Blob, Global, Items, Made, Scalar

_WRAPPERS = "guf-"  # before the name of a kernel's index: that of its wrappers
_WRAPPER = b"__gufunc__."  # before the name of a kernel: its wrapper
# What an object may leave to others: C and C++ functions, which the interpreter, Numba's runtime, the C library or a
# library that the module itself loads define. Names of compiled Python functions have a dot, or are mangled as those of
# C++ are, with the process's counter as their first ABI tag (`B2v7`: a tag of two letters, `v7`).
_LIBRARY_NAME = re.compile(rb"(?!_Z.*B[0-9]+v[0-9])[A-Za-z_][A-Za-z0-9_]*")
# What Numba calls a module that it could not import. Loading imports it, and so ends the process with ImportError.
_NO_MODULE = "<dynamic>"
# Addresses in the names of types (of functions, of classes): those of the process that wrote a file last.
_ADDRESS = re.compile(r"0x[0-9a-f]+|#[0-9a-f]+|[0-9]{9,}")


class _Index(NamedTuple):
    version: object
    stamp: object
    data: list[tuple[object, str]]  # key, name of the data file


class _Data(NamedTuple):
    is_library: bool  # code alone, as wrappers are; else the result of a compilation
    signature: tuple[str, ...] | None  # the argument types that it was compiled for, where they can be told
    symbols: elf.Symbols


def check(files: EntryFiles) -> None:
    """Raise `EntryInvalid` unless each index of the entry is whole and of one process with its data and the others."""
    folder = files.entry.rpartition("/")[0] + "/"
    indexes = {name[len(folder) : -len(".nbi")]: name for name in files.names if name.endswith(".nbi")}
    data_names = [name for name in files.names if name.endswith(".nbc")]
    if not indexes or {_stem(name[len(folder) :]) for name in data_names} != indexes.keys():
        raise EntryInvalid("incomplete")
    data = {name[len(folder) :]: _read_data(files, name) for name in data_names}
    functions = {stem: _read_index(files, name) for stem, name in indexes.items()}
    for stem, index in functions.items():
        for key, name in index.data:
            if _stem(name) != stem or name not in data:
                raise EntryInvalid("incomplete")
            _check_key(key, data[name])
    for stem, index in functions.items():
        wrappers = [(key, data[name]) for key, name in index.data if data[name].is_library]
        if wrappers:
            _check_wrappers(wrappers, index, functions.get(stem.removeprefix(_WRAPPERS)), data)


def _stem(data_name: str) -> str:
    """Return the name of a data file without `.<n>.nbc`."""
    return data_name.removesuffix(".nbc").rpartition(".")[0]


def _read_index(files: EntryFiles, name: str) -> _Index:
    version, content = (pickle.value for pickle in pickle_framing.check(files, name, pickles=2))
    if not (isinstance(content, tuple) and len(content) == 2 and isinstance(content[1], Items)):
        raise EntryInvalid("field-malformed")
    stamp, items = content
    data = [(key, value) for key, value in items if isinstance(value, str)]
    if not data or len(data) != len(items):
        raise EntryInvalid("field-malformed" if items else "incomplete")
    return _Index(version, _comparable(stamp), data)


def _comparable(stamp: object) -> object:
    """Return a stamp, a hash or mtime and size, without its place in the file."""
    if isinstance(stamp, tuple) and all(isinstance(part, Scalar) for part in stamp):
        return stamp
    return stamp.data if isinstance(stamp, Blob) else stamp if isinstance(stamp, str) else None


def _read_data(files: EntryFiles, name: str) -> _Data:
    (pickle,) = pickle_framing.check(files, name, pickles=1)
    defined: set[bytes] = set()
    with files.open(name) as (file, _):
        for blob in pickle.objects:
            symbols = elf.symbols(elf.Part(file, blob.start, blob.size))
            if not all(map(_LIBRARY_NAME.fullmatch, symbols.undefined)):
                raise EntryInvalid("undefined-symbol")
            defined |= symbols.defined
    value = pickle.value
    parts = value if isinstance(value, tuple) else ()
    if isinstance(value, Items):  # a kernel for a GPU
        parts = tuple(part for _, part in value)
    for part in parts:
        if any(map(_is_of_no_module, part if isinstance(part, tuple) else (part,))):
            raise EntryInvalid("not-importable")
    signature = next((part for part in parts if _is_call(part, "Signature")), None)
    return _Data(_is_library(value), _argument_types(signature), elf.Symbols(defined, set()))


def _is_of_no_module(part: object) -> bool:
    """Tell whether a part of a result is the environment of a function whose module Numba could not import."""
    if not (isinstance(part, Made) and _is_call(part, "_rebuild_env") and isinstance(part.arguments, tuple)):
        return False
    return part.arguments[:1] == (_NO_MODULE,)


def _is_library(value: object) -> bool:
    """Tell whether a value is a `CodeLibrary`: its name, "object", and the object with its bitcode."""
    return isinstance(value, tuple) and len(value) == 3 and isinstance(value[0], str) and value[1] == "object"


def _check_key(key: object, data: _Data) -> None:
    """Require that data were compiled for the types that the index has them under.

    Two processes that compile a function for the first time, for different types, both take the number 1. A key that
    is a text (of a decorator's explicit types) is not looked at: all processes compile those in the same order.
    """
    wanted = _argument_types(key[0]) if isinstance(key, tuple) and key else None
    if None not in (wanted, data.signature) and wanted != data.signature:
        raise EntryInvalid("two-writers")


def _check_wrappers(
    wrappers: list[tuple[object, _Data]], index: _Index, kernels: _Index | None, data: dict[str, _Data]
) -> None:
    """Require that each wrapper is that of the kernel which is found under the same types."""
    if kernels is None:
        raise EntryInvalid("incomplete")
    if (kernels.version, kernels.stamp) != (index.version, index.stamp):
        raise EntryInvalid("two-writers")
    compiled = [data[name] for _, name in kernels.data]
    for key, wrapper in wrappers:
        wanted = _argument_types(key[0]) if isinstance(key, tuple) and key else None
        candidates = [kernel for kernel in compiled if not kernel.is_library and wanted in (None, kernel.signature)]
        if not candidates:
            raise EntryInvalid("incomplete")
        if not any(_WRAPPER + name in wrapper.symbols.defined for each in candidates for name in each.symbols.defined):
            raise EntryInvalid("two-writers")


def _argument_types(value: object) -> tuple[str, ...] | None:
    """Return the types of a signature, or of a tuple of types, by class and name; None where they can't be told."""
    if isinstance(value, Made) and _is_call(value, "Signature") and isinstance(value.state, tuple):
        value = value.state[1] if len(value.state) > 1 else None
    if not isinstance(value, tuple):
        return None
    names = [_type_name(part) for part in value]
    return tuple(name for name in names if name) if all(names) else None


def _type_name(value: object) -> str:
    """Return a type's class and name; "" where it can't be told. Not its code, which is a counter of the process."""
    if not (isinstance(value, Made) and _is_call(value, "_type_reconstructor") and isinstance(value.arguments, tuple)):
        return ""
    arguments = value.arguments
    if len(arguments) != 3 or not isinstance(arguments[1], tuple) or not isinstance(arguments[2], Items):
        return ""
    made = arguments[1][0] if arguments[1] else None
    names = [text for key, text in arguments[2] if key == "name" and isinstance(text, str)]
    return f"{made.name} {_ADDRESS.sub('@', names[0])}" if isinstance(made, Global) and names else ""


def _is_call(value: object, name: str) -> bool:
    return isinstance(value, Made) and isinstance(value.callable, Global) and value.callable.name == name
