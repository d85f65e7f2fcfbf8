"""Check that a file is a given number of whole binary pickles, without unpickling anything.

Opcodes, argument lengths and stack effects are the standard library's own table (`pickletools`); what
the table says is followed with types, never with values. Payloads are skipped, not held, except text,
which is decoded in pieces. Numba writes protocol 5 (docs/cache-formats.md, Numba); 4 is accepted.
"""

from __future__ import annotations

import codecs
import pickletools
from typing import BinaryIO

from warmstart.profiles.entry_files import EntryFiles, EntryInvalid
from warmstart.profiles.formats import elf

LARGEST = 256 << 20
MOST_OPCODES = 1 << 20  # real files have some hundreds; this bounds time (a second) and memory
_PIECE = 1 << 16
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


def check(files: EntryFiles, name: str, *, pickles: int, collect: str = "") -> set[str]:
    """Raise `EntryInvalid` unless `name` is exactly `pickles` whole pickles up to its last byte.

    Returns the strings in it that end in `collect` (none when that is empty). ELF objects among the
    byte strings are checked as such.
    """
    with files.open(name) as (file, size):
        if size > LARGEST:
            raise EntryInvalid("too-large")
        found: set[str] = set()
        for _ in range(pickles):
            found |= _Walk(file, size, collect).to_stop()
        if file.tell() != size:
            raise EntryInvalid("pickle-trailing")
    return found


class _Walk:
    """One pickle, from PROTO to STOP: position, frame, stack of types and memo."""

    def __init__(self, file: BinaryIO, size: int, collect: str) -> None:
        self._file = file
        self._size = size
        self._collect = collect
        self._found: set[str] = set()
        self._frame_end = 0  # 0 while no frame is open
        self._stack: list[pickletools.StackObject] = []
        self._marks: list[int] = []
        self._memo: dict[int, pickletools.StackObject] = {}

    def to_stop(self) -> set[str]:
        """Walk to STOP; the file stands behind it."""
        for count in range(MOST_OPCODES):
            opcode = _OPCODES.get(self._bytes(1)[0])
            if opcode is None or (count == 0) != (opcode.name == "PROTO"):
                raise EntryInvalid("pickle-malformed")
            value = self._argument(opcode)
            self._apply(opcode, value)
            self._leave_frame(ended=opcode.name == "STOP")
            if opcode.name == "STOP":
                if self._stack or self._marks:
                    raise EntryInvalid("pickle-malformed")
                return self._found
        raise EntryInvalid("too-large")

    def _bytes(self, length: int) -> bytes:
        data = self._file.read(length)
        if len(data) < length:
            raise EntryInvalid("pickle-truncated")
        return data

    def _argument(self, opcode: pickletools.OpcodeInfo) -> int:
        """Consume the argument; return its number where it is a small unsigned one, else 0."""
        if opcode.arg is None:
            return 0
        width = _LENGTHS.get(opcode.arg.n)
        if width:
            self._payload(opcode, int.from_bytes(self._bytes(width), "little"))
            return 0
        if opcode.arg.n < 0:  # up to a newline: protocol 0, which no cache writes
            raise EntryInvalid("pickle-malformed")
        value = int.from_bytes(self._bytes(opcode.arg.n), "little")
        if opcode.name == "FRAME":
            self._enter_frame(value)
        if opcode.name == "PROTO" and not 4 <= value <= 5:
            raise EntryInvalid("pickle-malformed")
        return value

    def _payload(self, opcode: pickletools.OpcodeInfo, length: int) -> None:
        start = self._file.tell()
        if start + length > self._size:
            raise EntryInvalid("pickle-truncated")
        if opcode.stack_after == [pickletools.pyunicode]:
            self._text(length)
        elif opcode.stack_after == [pickletools.pybytes]:
            elf.check_if_object(self._file, start, length)
        self._file.seek(start + length)

    def _text(self, length: int) -> None:
        decoder = codecs.getincrementaldecoder("utf-8")("surrogatepass")
        text = ""
        try:
            for done in range(0, length, _PIECE):
                piece = self._bytes(min(_PIECE, length - done))
                text = decoder.decode(piece, final=done + _PIECE >= length)
        except UnicodeDecodeError as error:
            raise EntryInvalid("pickle-malformed") from error
        if self._collect and length <= _PIECE and text.endswith(self._collect):
            self._found.add(text)

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

    def _apply(self, opcode: pickletools.OpcodeInfo, value: int) -> None:
        if opcode.name in _PUTS or opcode.name == "MEMOIZE":
            self._memo[len(self._memo) if opcode.name == "MEMOIZE" else value] = self._top()
            return
        self._pop(opcode)
        if opcode.name in _GETS:
            if value not in self._memo:
                raise EntryInvalid("pickle-malformed")
            self._stack.append(self._memo[value])
            return
        if opcode.name == "MARK":
            self._marks.append(len(self._stack))
        self._stack += opcode.stack_after

    def _top(self) -> pickletools.StackObject:
        if not self._stack or self._stack[-1] is _MARK:
            raise EntryInvalid("pickle-malformed")
        return self._stack[-1]

    def _pop(self, opcode: pickletools.OpcodeInfo) -> None:
        expected = opcode.stack_before
        if _MARK in expected:
            if not self._marks:
                raise EntryInvalid("pickle-malformed")
            del self._stack[self._marks.pop() :]
            expected = expected[: expected.index(_MARK)]
        for kind in reversed(expected):
            top = self._top()
            if kind is not _ANY and top is not _ANY and top is not kind:
                raise EntryInvalid("pickle-malformed")
            self._stack.pop()
