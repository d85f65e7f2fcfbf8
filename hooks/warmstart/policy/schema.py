"""Durations and sizes as admins write them: a whole number and its unit, nothing else.

A bare number is refused: nobody should have to guess whether `wait: 4` is seconds or minutes.
"""

from __future__ import annotations

import re

SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
BYTES = {"B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}

# Nine digits: larger numbers are typing errors, and stay far below 2**63 in every unit.
DURATION = r"[1-9][0-9]{0,8}[smhd]"
SIZE = r"[1-9][0-9]{0,8}([KMGT]i)?B"
PERCENT = r"[1-9]?[0-9]%"
_DURATION = re.compile(DURATION)
_SIZE = re.compile(SIZE)
_PERCENT = re.compile(PERCENT)
PORTS = r"[1-9][0-9]{3,4}-[1-9][0-9]{3,4}"
_PORTS = re.compile(PORTS)
LOWEST_PORT, HIGHEST_PORT = 1024, 65535  # below, ports are root's (ip(7))


def parse_duration(text: object) -> int:
    """Return the seconds of `30s`, `4m`, `24h` or `7d`; `ValueError` says what to write instead."""
    if not isinstance(text, str) or not _DURATION.fullmatch(text):
        raise ValueError(f"{text!a} is not a duration; write a number and s, m, h or d: 30s, 4m")
    return int(text[:-1]) * SECONDS[text[-1]]


def parse_size(text: object) -> int:
    """Return the bytes of `512MiB` or `1GiB`; `ValueError` says what to write instead."""
    if not isinstance(text, str) or not _SIZE.fullmatch(text):
        units = ", ".join(BYTES)
        raise ValueError(f"{text!a} is not a size; write a number and one of {units}: 1GiB")
    number = text.rstrip("BKMGTi")
    return int(number) * BYTES[text[len(number) :]]


def parse_percent(text: object) -> int:
    """Return the number of `85%`, 0 to 99; `ValueError` says what to write instead."""
    if not isinstance(text, str) or not _PERCENT.fullmatch(text):
        raise ValueError(f"{text!a} is not a share; write a number from 0 to 99 and %: 85%")
    return int(text[:-1])


def parse_ports(text: object) -> tuple[int, int]:
    """Return both ends of `20000-29999`; `ValueError` says what to write instead."""
    if not isinstance(text, str) or not _PORTS.fullmatch(text):
        raise ValueError(f"{text!a} is not a range of ports; write the first and the last one: 20000-29999")
    low, high = map(int, text.split("-"))
    if not LOWEST_PORT <= low <= high <= HIGHEST_PORT:
        raise ValueError(f"{text!a}: write a range between {LOWEST_PORT} and {HIGHEST_PORT}, the lower end first")
    return low, high
