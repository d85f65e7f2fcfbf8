"""A job's nodes from a hook's environment, without a query to Slurm: host lists.

They have the grammar that `hostlist_create` in src/common/hostlist.c prints: `n[1-4,7],login1`.
"""

from __future__ import annotations

_LONGEST_NAME = 255
_LONGEST_RANGE = 32  # characters
_MOST_BRACKETS = 8  # of one host


def first(hostlist: str) -> str:
    """Return the first host of a host list (`n01` of `n[01-04,7],m3`), "" for an empty list."""
    depth = 0
    end = len(hostlist)
    for index, character in enumerate(hostlist):
        depth += (character == "[") - (character == "]")
        if character == "," and depth == 0:
            end = index
            break
    host = hostlist[:end]
    while "[" in host:
        before, _, rest = host.partition("[")
        ranges, _, after = rest.partition("]")
        number = ranges.split(",", 1)[0].split("-", 1)[0]
        host = before + number + after
    return host


def expand(hostlist: str, most: int = 1 << 16) -> list[str]:
    """Return all hosts of a host list: `n01`, `n02` and `m3` of `n[01-02],m3`.

    Raises `ValueError` if the list is malformed, or has more than `most` hosts. It may be a user's.
    """
    hosts: list[str] = []
    start = depth = 0
    for index, character in enumerate(f"{hostlist},"):
        depth += (character == "[") - (character == "]")
        if character == "," and depth == 0:
            hosts += _expanded(hostlist[start:index], most)
            start = index + 1
            if len(hosts) > most:
                raise ValueError(f"more than {most} hosts")
    if depth:
        raise ValueError("a bracket too many")
    return hosts


def _expanded(host: str, most: int) -> list[str]:
    before, bracket, rest = host.partition("[")
    if len(before) > _LONGEST_NAME or rest.count("[") >= _MOST_BRACKETS:
        raise ValueError("no name of a host")
    if not bracket:
        return [host] if host else []
    ranges, _, after = rest.partition("]")
    ends = _expanded(after, most) or [""]
    numbers: list[str] = []
    for part in ranges.split(","):
        low, _, high = part.partition("-")
        if len(part) > _LONGEST_RANGE:
            raise ValueError("no range of hosts")
        first_one, last_one = int(low), int(high or low)
        if (len(numbers) + last_one - first_one + 1) * len(ends) > most:
            raise ValueError(f"more than {most} hosts")
        numbers += [str(number).zfill(len(low)) for number in range(first_one, last_one + 1)]
    return [f"{before}{number}{end}" for number in numbers for end in ends]


def has_several(hostlist: str) -> bool:
    """Return whether a host list has several hosts: true for `n1,n2` and `n[1-2]`, false for `n1` and `n[7]-ib`."""
    depth = 0
    for character in hostlist:
        depth += (character == "[") - (character == "]")
        if character == "," or (character == "-" and depth):
            return True
    return False
