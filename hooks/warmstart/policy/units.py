"""Durations, sizes, shares and ranges of ports as a policy and the command line write them.

Durations and sizes are a whole number and its unit. A bare number is refused: nobody should have to guess whether
`wait: 4` means seconds or minutes.
"""

from __future__ import annotations

import re

SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
BYTES = {"B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}
# Nine digits: a larger number is a typing error, and every value stays far below 2**63.
DURATION = r"[1-9][0-9]{0,8}[smhd]"
SIZE = r"[1-9][0-9]{0,8}([KMGT]i)?B"
PERCENT = r"[1-9]?[0-9]%"
PORTS = r"[1-9][0-9]{3,4}-[1-9][0-9]{3,4}"
_LOWEST_PORT, _HIGHEST_PORT = 1024, 65535  # only root may bind lower ones (ip(7))


def parse_duration(text: object) -> int:
    """Return the seconds of `30s`, `4m`, `24h` or `7d`. Raises `ValueError` that says what to write instead."""
    return _number(text, SECONDS, DURATION, "duration", "30s, 4m")


def parse_size(text: object) -> int:
    """Return the bytes of `512MiB` or `1GiB`. Raises `ValueError` that says what to write instead."""
    return _number(text, BYTES, SIZE, "size", "1GiB")


def parse_percent(text: object) -> int:
    """Return 85 for `85%`, 0 to 99. Raises `ValueError` that says what to write instead."""
    return _number(text, {"%": 1}, PERCENT, "share", "85%")


def _number(text: object, units: dict[str, int], pattern: str, what: str, example: str) -> int:
    if not isinstance(text, str) or not re.fullmatch(pattern, text):
        raise ValueError(f"{text!a} is not a {what}; write a number and its unit ({', '.join(units)}): {example}")
    number = re.split("[^0-9]", text, maxsplit=1)[0]
    return int(number) * units[text.removeprefix(number)]


def format_size(count: float) -> str:
    """Return a number of bytes as `512MiB` or `1.5GiB`."""
    return _scaled(count, BYTES)


def format_duration(seconds: float) -> str:
    """Return seconds as `30s` or `1.5h`; less than one as `31ms`."""
    return f"{seconds * 1000:.0f}ms" if 0 < seconds < 1 else _scaled(seconds, SECONDS)


def parse_ports(text: object) -> tuple[int, int]:
    """Return both ends of `20000-29999`. Raises `ValueError` that says what to write instead."""
    if not isinstance(text, str) or not re.fullmatch(PORTS, text):
        raise ValueError(f"{text!a} is not a range of ports; write the first and the last one: 20000-29999")
    low, high = map(int, text.split("-"))
    if not _LOWEST_PORT <= low <= high <= _HIGHEST_PORT:
        raise ValueError(f"{text!a}: write a range between {_LOWEST_PORT} and {_HIGHEST_PORT}, the lower end first")
    return low, high


def _scaled(value: float, units: dict[str, int]) -> str:
    unit = max((name for name in units if units[name] <= max(value, 1)), key=units.__getitem__)
    return f"{value / units[unit]:.1f}".removesuffix(".0") + unit
