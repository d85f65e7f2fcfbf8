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
    if not isinstance(text, str) or not re.fullmatch(DURATION, text):
        raise ValueError(f"{text!a} is not a duration; write a number and s, m, h or d: 30s, 4m")
    return int(text[:-1]) * SECONDS[text[-1]]


def parse_size(text: object) -> int:
    """Return the bytes of `512MiB` or `1GiB`. Raises `ValueError` that says what to write instead."""
    if not isinstance(text, str) or not re.fullmatch(SIZE, text):
        units = ", ".join(BYTES)
        raise ValueError(f"{text!a} is not a size; write a number and one of {units}: 1GiB")
    number = text.rstrip("BKMGTi")
    return int(number) * BYTES[text[len(number) :]]


def format_size(count: float) -> str:
    """Return a number of bytes as `512MiB` or `1.5GiB`."""
    return _scaled(count, BYTES)


def format_duration(seconds: float) -> str:
    """Return seconds as `30s` or `1.5h`; less than one as `31ms`."""
    return f"{seconds * 1000:.0f}ms" if 0 < seconds < 1 else _scaled(seconds, SECONDS)


def parse_percent(text: object) -> int:
    """Return 85 for `85%`, 0 to 99. Raises `ValueError` that says what to write instead."""
    if not isinstance(text, str) or not re.fullmatch(PERCENT, text):
        raise ValueError(f"{text!a} is not a share; write a number from 0 to 99 and %: 85%")
    return int(text[:-1])


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
