"""What hooks take in place of slow parts of the standard library. Hot path; the one file for tricks of that kind.

A hook's start is most of a warm prolog. In user instructions, where a bare `python3 -I` runs 32 million: `typing` takes
38 million and 1 for each NamedTuple class, `json` 28, `re` 22 (json and typing load it, too) and 0.5 for each pattern,
`contextlib` 16, `ctypes` 12, `hashlib` 11 and the mapping of OpenSSL. A warm prolog has room for 96 in all.

Everything here means what its namesake means, as far as hooks use it: `tests/unit/test_lean.py` compares them. Type
checkers see the originals. What is not on a hook's warm path takes the originals, too.
"""

from __future__ import annotations

import os
import sys

__all__ = [
    "TYPE_CHECKING",
    "Callable",
    "Collection",
    "Container",
    "Iterable",
    "Iterator",
    "Literal",
    "Mapping",
    "NamedTuple",
    "Sequence",
    "contextmanager",
    "dumps",
    "fnmatchcase",
    "libc",
    "loads",
    "partial",
    "sha256",
    "suppress",
]

TYPE_CHECKING = False  # type checkers know the name, and take it for true

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Container, Iterable, Iterator, Mapping, Sequence
    from contextlib import contextmanager, suppress
    from fnmatch import fnmatchcase
    from functools import partial
    from json import dumps, loads
    from typing import Any, Literal, NamedTuple
else:
    # `os` has loaded this module, and `collections.abc` is another name of it; but a package is loaded with that.
    from _collections import _tuplegetter
    from _collections_abc import Callable, Collection, Container, Iterable, Iterator, Mapping, Sequence
    from _functools import partial
    from _json import encode_basestring_ascii, make_encoder, make_scanner

    class Literal:
        """The values that a field may have; `host.wire` checks them."""

        def __init__(self, values):
            self.values = values

        def __class_getitem__(cls, values):
            return cls(values if isinstance(values, tuple) else (values,))

    def _new(cls, /, *values, **named):
        if named or len(values) != len(cls._fields):
            values = _completed(cls, values, named)
        return tuple.__new__(cls, values)

    def _make(cls, values):
        return cls(*values)

    def _replace(self, /, **named):
        return type(self)(**{**dict(zip(self._fields, self, strict=True)), **named})

    def _asdict(self):
        return dict(zip(self._fields, self, strict=True))

    def _repr(self):
        fields = ", ".join(f"{name}={value!r}" for name, value in zip(self._fields, self, strict=True))
        return f"{type(self).__name__}({fields})"

    # In each class and not in a base class: the less a class inherits, the less its creation takes.
    _METHODS = {
        "__slots__": (),
        "__new__": _new,
        "__repr__": _repr,
        "__getnewargs__": tuple,
        "_make": classmethod(_make),
        "_replace": _replace,
        "_asdict": _asdict,
    }

    def _completed(cls, values, named):
        """Return the values of a call with keywords or defaults, in the order of the fields."""
        if len(values) > len(cls._fields):
            raise TypeError(f"{cls.__name__}() takes {len(cls._fields)} values but {len(values)} were given")
        by_name = {**cls._field_defaults, **dict(zip(cls._fields, values, strict=False))}
        for name, value in named.items():
            if name not in cls._fields or name in cls._fields[: len(values)]:
                raise TypeError(f"{cls.__name__}() got an unexpected or second value for {name!r}")
            by_name[name] = value
        try:
            return [by_name[name] for name in cls._fields]
        except KeyError as missing:
            raise TypeError(f"{cls.__name__}() is missing a value for {missing}") from None

    class _MakesNamed(type):
        """Turns the body of `class X(NamedTuple)` into a class whose metaclass is `type`."""

        def __new__(mcs, name, _bases, body):
            fields = tuple(body.get("__annotations__", ()))
            defaults = {field: body[field] for field in fields if field in body}
            getters = {field: _tuplegetter(number, None) for number, field in enumerate(fields)}
            own = {"__match_args__": fields, "_fields": fields, "_field_defaults": defaults}
            return type.__new__(type, name, (tuple,), {**_METHODS, **body, **getters, **own})

    class _NamedTuple:
        def __mro_entries__(self, _bases):
            return (_BASE,)

    # A base class whose metaclass makes the class; as `typing.NamedTuple`, it is in no class's order of resolution.
    _BASE = type.__new__(_MakesNamed, "NamedTuple", (), {})
    NamedTuple = _NamedTuple()

    class suppress:  # noqa: N801 - a namesake
        """As in contextlib."""

        def __init__(self, *errors):
            self._errors = errors

        def __enter__(self):
            return None

        def __exit__(self, kind, _error, _traceback):
            return kind is not None and issubclass(kind, self._errors)

    class _Context:
        """One run of a generator function with `contextmanager`."""

        def __init__(self, generator):
            self._generator = generator

        def __enter__(self):
            return next(self._generator)

        def __exit__(self, kind, error, traceback):
            if kind is None:
                for _ in self._generator:
                    raise RuntimeError("generator didn't stop")
                return False
            try:
                self._generator.throw(error)
            except BaseException as raised:
                # What a generator does not catch comes back as it is, a StopIteration as the cause of a RuntimeError.
                if raised is error or (isinstance(raised, RuntimeError) and raised.__cause__ is error):
                    error.__traceback__ = traceback
                    return False
                if isinstance(raised, StopIteration):
                    return True
                raise
            raise RuntimeError("generator didn't stop after throw()")

    def contextmanager(function):
        """As in contextlib; the result is no decorator."""

        def made(*values, **named):
            return _Context(function(*values, **named))

        made.__wrapped__ = function
        made.__name__, made.__doc__, made.__module__ = function.__name__, function.__doc__, function.__module__
        return made

    def fnmatchcase(name, pat):
        """As in fnmatch, for patterns with `*` alone."""
        head, *others = pat.split("*")
        if not others:
            return name == pat
        *middle, tail = others
        at, end = len(head), len(name) - len(tail)
        if at > end or not (name.startswith(head) and name.endswith(tail)):
            return False
        for part in middle:
            at = name.find(part, at, end) + len(part)
            if at < len(part):
                return False
        return True

    class _Decoding:
        """What the C scanner asks of a `json.JSONDecoder`."""

        strict = True
        object_hook = object_pairs_hook = None
        parse_float, parse_int = float, int
        parse_constant = {"-Infinity": float("-inf"), "Infinity": float("inf"), "NaN": float("nan")}.__getitem__
        memo = {}  # noqa: RUF012

    _scan = make_scanner(_Decoding)
    _SPACE = " \t\n\r"

    def loads(data):
        """As in json, for bytes in UTF-8 and for text."""
        text = data if isinstance(data, str) else data.decode()
        start = len(text) - len(text.lstrip(_SPACE))
        try:
            value, end = _scan(text, start)
        except StopIteration as stop:
            raise ValueError(f"no JSON value at character {stop.value}") from None
        except SystemError:  # up to Python 3.11 the scanner knows its own error only where `json.decoder` is loaded
            raise ValueError("malformed JSON") from None
        if text[end:].strip(_SPACE):
            raise ValueError(f"extra data after the JSON value, at character {end}")
        return value

    def _unencodable(value):
        raise TypeError(f"Object of type {type(value).__name__} is not JSON serializable")

    def _write_float(value):
        if value != value:  # noqa: PLR0124 - NaN
            return "NaN"
        if value in (float("inf"), float("-inf")):
            return "Infinity" if value > 0 else "-Infinity"
        return float.__repr__(value)

    def dumps(value, *, default=_unencodable, separators=(", ", ": "), sort_keys=False):
        """As in json."""
        if isinstance(value, str):
            return encode_basestring_ascii(value)
        item, key = separators
        encode = make_encoder({}, default, encode_basestring_ascii, None, key, item, sort_keys, False, True)
        return "".join(encode(value, 0))


def sha256(data: bytes = b"", more: int = 0) -> Any:
    """Return hashlib's object, for `more` bytes beside these.

    Its own code only for a megabyte or more, and where this Python has no other: it maps OpenSSL, and is faster then.
    """
    global _sha256  # noqa: PLW0603 - found once
    if len(data) + more >= _MANY:
        return __import__("hashlib").sha256(data)
    if _sha256 is None:
        module = "_sha2" if sys.version_info >= (3, 12) else "_sha256"
        try:
            _sha256 = __import__(module).sha256
        except ImportError:  # built without
            _sha256 = __import__("hashlib").sha256
    return _sha256(data)


_sha256: Any = None
_MANY = 1 << 20


def libc(function: str, *arguments: int | bytes | None, subject: str | None = None) -> int:
    """Call a function of the C library that returns an int; raise `OSError` with its errno if that is negative.

    Integers are passed as `long`. `subject` is the file that the error names. This is what `ctypes` is made of; that
    module defines forty types first.
    """
    import _ctypes

    made = _libc or _opened_libc()
    result: int = made.function(made.address(function))(
        *(made.long(value) if isinstance(value, int) else value for value in arguments)
    )
    if result < 0:
        number = _ctypes.get_errno()
        raise OSError(number, os.strerror(number), subject)
    return result


_libc: Any = None


def _opened_libc() -> Any:
    import _ctypes

    handle = _ctypes.dlopen(None, 0)  # type: ignore[arg-type]  # this process, and so its C library

    class Long(_ctypes._SimpleCData):  # type: ignore[type-arg] # noqa: SLF001
        _type_ = "l"

    class Int(_ctypes._SimpleCData):  # type: ignore[type-arg] # noqa: SLF001
        _type_ = "i"

    class Function(_ctypes.CFuncPtr):
        _flags_ = _ctypes.FUNCFLAG_CDECL | _ctypes.FUNCFLAG_USE_ERRNO
        _restype_ = Int

    class Library:
        function, long = Function, Long

        @staticmethod
        def address(name: str) -> int:
            return _ctypes.dlsym(handle, name)

    global _libc  # noqa: PLW0603 - loaded once
    _libc = Library
    return Library
