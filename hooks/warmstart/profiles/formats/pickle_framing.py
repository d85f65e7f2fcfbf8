"""Check that a file is a given number of whole binary pickles, without unpickling anything.

Opcodes, argument lengths and stack effects are the standard library's own table (`pickletools`). What the pickle
would make is returned as inert parts: names of globals are text, calls are `Made`, nothing is imported or called.
Long payloads are skipped and not held; text is decoded in pieces. Numba writes protocol 5 (docs/cache-formats.md,
Numba); 4 is accepted.
"""

from __future__ import annotations

import codecs
import pickletools
from collections.abc import Callable
from typing import BinaryIO, NamedTuple

from warmstart.profiles.entry_files import EntryFiles, EntryInvalid
from warmstart.profiles.formats import elf

LARGEST = 256 << 20
MOST_OPCODES = 1 << 20  # real files have some hundreds; this bounds time (a second) and memory
_PIECE = 1 << 16
_LONGEST_HELD = 1 << 12  # bytes of one text or byte string that is held; numbers and names are shorter
_OPCODES = {ord(opcode.code): opcode for opcode in pickletools.opcodes}
_MARK = pickletools.markobject
_ANY = pickletools.anyobject
# Widths of the length that stands before a payload, by pickletools' codes for "taken from an argument".
_LENGTHS = {
    pickletools.TAKEN_FROM_ARGUMENT1: 1,
    pickletools.TAKEN_FROM_ARGUMENT4: 4,
    pickletools.TAKEN_FROM_ARGUMENT4U: 4,
    pickletools.TAKEN_FROM_ARGUMENT8U: 8,
}
_PUTS = {"BINPUT", "LONG_BINPUT"}
_GETS = {"BINGET", "LONG_BINGET"}
_SCALARS = {"NONE", "NEWTRUE", "NEWFALSE", "BININT", "BININT1", "BININT2", "BINFLOAT"}
_FILLERS = {"APPEND", "APPENDS", "SETITEM", "SETITEMS", "BUILD"}


class Global(NamedTuple):
    """A class or function that the pickle names."""

    module: object
    name: object


class Blob(NamedTuple):
    """A byte string: where it lies in the file, and its bytes if it is short."""

    start: int
    size: int
    data: bytes


class Scalar(NamedTuple):
    """A number, a boolean or None: the opcode and its argument's bits."""

    opcode: str
    bits: int


class Items(list[tuple[object, object]]):
    """A dictionary: keys and values in the order in which they were put in."""


class Made:
    """What a callable returns, and the state that it is given afterwards."""

    __slots__ = ("arguments", "callable", "state")

    def __init__(self, called: object, arguments: object) -> None:
        self.callable = called
        self.arguments = arguments
        self.state: object = None


class Other(NamedTuple):
    """A value that nobody asks for."""


_MAKERS: dict[str, Callable[..., object]] = {
    **dict.fromkeys(["EMPTY_TUPLE", "TUPLE", "TUPLE1", "TUPLE2", "TUPLE3"], lambda *parts: parts),
    "EMPTY_LIST": list,
    "EMPTY_DICT": Items,
    "STACK_GLOBAL": Global,
    "REDUCE": Made,
    "NEWOBJ": Made,
}
Slot = tuple[pickletools.StackObject, object]  # what pickletools knows of a value, and the value
_OTHER = Other()


class Pickle(NamedTuple):
    """One pickle's value: `str`, `Blob`, `Scalar`, tuples, lists, `Items`, `Global`, `Made`, or `Other`."""

    value: object
    objects: list[Blob]  # the byte strings that are ELF objects for the CPU


def check(files: EntryFiles, name: str, *, pickles: int) -> list[Pickle]:
    """Return the pickles of `name`; `EntryInvalid` unless it is exactly that many whole ones up to its last byte.

    ELF objects and cubins among the byte strings are checked as such.
    """
    with files.open(name) as (file, size):
        if size > LARGEST:
            raise EntryInvalid("too-large")
        walked = [_Walk(file, size).to_stop() for _ in range(pickles)]
        if file.tell() != size:
            raise EntryInvalid("pickle-trailing")
    return walked


class _Walk:
    """One pickle, from PROTO to STOP: position, frame, stack and memo."""

    def __init__(self, file: BinaryIO, size: int) -> None:
        self._file = file
        self._size = size
        self._objects: list[Blob] = []
        self._frame_end = 0  # 0 while no frame is open
        self._stack: list[Slot] = []
        self._marks: list[int] = []
        self._memo: dict[int, Slot] = {}

    def to_stop(self) -> Pickle:
        """Walk to STOP; the file stands behind it."""
        for count in range(MOST_OPCODES):
            opcode = _OPCODES.get(self._bytes(1)[0])
            if opcode is None or (count == 0) != (opcode.name == "PROTO"):
                raise EntryInvalid("pickle-malformed")
            argument = self._argument(opcode)
            if opcode.name == "STOP":
                value = self._top()[1]
            self._apply(opcode, argument)
            self._leave_frame(ended=opcode.name == "STOP")
            if opcode.name == "STOP":
                if self._stack or self._marks:
                    raise EntryInvalid("pickle-malformed")
                return Pickle(value, self._objects)
        raise EntryInvalid("too-large")

    def _bytes(self, length: int) -> bytes:
        data = self._file.read(length)
        if len(data) < length:
            raise EntryInvalid("pickle-truncated")
        return data

    def _argument(self, opcode: pickletools.OpcodeInfo) -> object:
        """Consume the argument and return it: a number's bits, a text or a `Blob`; 0 where there is none."""
        if opcode.arg is None:
            return 0
        width = _LENGTHS.get(opcode.arg.n)
        if width:
            return self._payload(opcode, int.from_bytes(self._bytes(width), "little"))
        if opcode.arg.n < 0:  # up to a newline: protocol 0, which no cache writes
            raise EntryInvalid("pickle-malformed")
        value = int.from_bytes(self._bytes(opcode.arg.n), "little")
        if opcode.name == "FRAME":
            self._enter_frame(value)
        if opcode.name == "PROTO" and not 4 <= value <= 5:
            raise EntryInvalid("pickle-malformed")
        return value

    def _payload(self, opcode: pickletools.OpcodeInfo, length: int) -> object:
        start = self._file.tell()
        if start + length > self._size:
            raise EntryInvalid("pickle-truncated")
        value: object = _OTHER
        if opcode.stack_after == [pickletools.pyunicode]:
            value = self._text(length)
        elif opcode.stack_after == [pickletools.pybytes]:
            value = Blob(start, length, self._bytes(length) if length <= _LONGEST_HELD else b"")
            if elf.check_if_object(self._file, start, length):
                self._objects.append(value)
        self._file.seek(start + length)
        return value

    def _text(self, length: int) -> object:
        """Decode a text; one that is too long to be held is no value of interest."""
        decoder = codecs.getincrementaldecoder("utf-8")("surrogatepass")
        text = ""
        try:
            for done in range(0, length, _PIECE):
                piece = self._bytes(min(_PIECE, length - done))
                text = decoder.decode(piece, final=done + _PIECE >= length)
        except UnicodeDecodeError as error:
            raise EntryInvalid("pickle-malformed") from error
        return text if length <= _LONGEST_HELD else _OTHER

    def _enter_frame(self, length: int) -> None:
        if self._frame_end:
            raise EntryInvalid("pickle-malformed")
        self._frame_end = self._file.tell() + length
        if self._frame_end > self._size:
            raise EntryInvalid("pickle-truncated")

    def _leave_frame(self, *, ended: bool) -> None:
        position = self._file.tell()
        if self._frame_end and (position > self._frame_end or (ended and position < self._frame_end)):
            raise EntryInvalid("pickle-malformed")
        if position == self._frame_end:
            self._frame_end = 0

    def _apply(self, opcode: pickletools.OpcodeInfo, argument: object) -> None:
        if opcode.name in _PUTS or opcode.name == "MEMOIZE":
            number = len(self._memo) if opcode.name == "MEMOIZE" else argument
            assert isinstance(number, int)
            self._memo[number] = self._top()
            return
        taken = self._pop(opcode)
        if opcode.name in _GETS:
            if argument not in self._memo:
                raise EntryInvalid("pickle-malformed")
            assert isinstance(argument, int)
            self._stack.append(self._memo[argument])
            return
        if opcode.name == "MARK":
            self._marks.append(len(self._stack))
        if len(opcode.stack_after) == 1:
            self._stack.append((opcode.stack_after[0], _made(opcode.name, argument, taken)))
        else:  # POP and its like leave nothing, DUP and its like are no pickler's
            self._stack += [(kind, _OTHER) for kind in opcode.stack_after]

    def _top(self) -> Slot:
        if not self._stack or self._stack[-1][0] is _MARK:
            raise EntryInvalid("pickle-malformed")
        return self._stack[-1]

    def _pop(self, opcode: pickletools.OpcodeInfo) -> list[object]:
        """Take from the stack what the opcode does; return the values, in the order in which they were put there."""
        expected = opcode.stack_before
        marked: list[object] = []
        if _MARK in expected:
            if not self._marks:
                raise EntryInvalid("pickle-malformed")
            start = self._marks.pop()
            marked = [value for _, value in self._stack[start + 1 :]]
            del self._stack[start:]
            expected = expected[: expected.index(_MARK)]
        taken: list[object] = []
        for kind in reversed(expected):
            top, value = self._top()
            if kind is not _ANY and top is not _ANY and top is not kind:
                raise EntryInvalid("pickle-malformed")
            self._stack.pop()
            taken.append(value)
        return [*reversed(taken), *marked]


def _made(opcode: str, argument: object, taken: list[object]) -> object:
    """Return the value that an opcode makes of what it took from the stack."""
    if opcode in _SCALARS:
        assert isinstance(argument, int)
        return Scalar(opcode, argument)
    if opcode in _MAKERS:
        return _MAKERS[opcode](*taken)
    if opcode in _FILLERS and taken:
        return _filled(opcode, taken)
    return argument if isinstance(argument, (str, Blob)) else _OTHER


def _filled(opcode: str, taken: list[object]) -> object:
    """Put the rest of what was taken into the first, and return that."""
    target, *rest = taken
    if isinstance(target, Items):
        if opcode in {"SETITEM", "SETITEMS"}:
            target += zip(rest[::2], rest[1::2], strict=False)
    elif isinstance(target, list):
        target += rest
    elif isinstance(target, Made):
        target.state = rest[0]
    return target
