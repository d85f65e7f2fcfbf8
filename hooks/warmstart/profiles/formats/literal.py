"""Read a Python literal of dictionaries, tuples, lists, strings, integers, booleans and None with a bounded parser.

`ast.literal_eval` is no option: its parser recurses as deep as the input demands, and a crash would leave the other
entries without a verdict. Escapes in strings are refused, because the strings are names and paths.
"""

from __future__ import annotations

import re

from warmstart.profiles.entry_files import EntryFiles, EntryInvalid

LARGEST = 4 << 20
_DEEPEST = 16
_STRINGS = r"""'([^'\\\n]*)'|"([^"\\\n]*)\""""
_TOKEN = re.compile(rf"\s*(?:([\[\](){{}},:])|{_STRINGS}|(-?[0-9]{{1,18}})(?![\w.])|(None|True|False)\b)")
_WORDS = {"None": None, "True": True, "False": False}
_CLOSING = {"(": ")", "[": "]"}


def read_dict(files: EntryFiles, name: str) -> dict[object, object]:
    """Parse a file that is one dictionary. Lists become tuples. Raises `EntryInvalid` ("literal-malformed")."""
    try:
        text = files.read(name, LARGEST).decode()
    except UnicodeDecodeError as error:
        raise EntryInvalid("literal-malformed") from error
    reader = _Reader(text)
    value = reader.value(0)
    if not isinstance(value, dict) or text[reader.at :].strip():
        raise EntryInvalid("literal-malformed")
    return value


class _Reader:
    """A recursive-descent parser with its position in the text."""

    def __init__(self, text: str) -> None:
        self.at = 0
        self._text = text

    def value(self, depth: int) -> object:
        """Parse one value at the given nesting depth."""
        sign, *plain = self._token()
        if sign == "{":
            return self._dict(depth + 1)
        if sign in _CLOSING:
            return self._items(_CLOSING[sign], depth + 1)
        _require(not sign)
        single, double, number, word = plain
        if number is not None:
            return int(number)
        if word is not None:
            return _WORDS[word]
        return double if single is None else single

    def _token(self) -> tuple[str | None, ...]:
        match = _TOKEN.match(self._text, self.at)
        _require(match is not None)
        assert match
        self.at = match.end()
        return match.groups()

    def _takes(self, sign: str) -> bool:
        match = _TOKEN.match(self._text, self.at)
        if not match or match[1] != sign:
            return False
        self.at = match.end()
        return True

    def _items(self, closing: str, depth: int) -> tuple[object, ...]:
        _require(depth <= _DEEPEST)
        items = []
        while not self._takes(closing):
            items.append(self.value(depth))
            if not self._takes(","):
                _require(self._takes(closing))
                break
        return tuple(items)

    def _dict(self, depth: int) -> dict[object, object]:
        _require(depth <= _DEEPEST)
        items = {}
        while not self._takes("}"):
            key = self.value(depth)
            _require(_is_key(key) and self._takes(":"))
            items[key] = self.value(depth)
            if not self._takes(","):
                _require(self._takes("}"))
                break
        return items


def _is_key(value: object) -> bool:
    if isinstance(value, tuple):
        return all(_is_key(item) for item in value)
    return not isinstance(value, dict)


def _require(condition: bool) -> None:
    if not condition:
        raise EntryInvalid("literal-malformed")
