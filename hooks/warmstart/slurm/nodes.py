"""Slurm's compressed host lists, as far as a hook needs them without asking Slurm.

Grammar as `hostlist_create` in Slurm's src/common/hostlist.c prints it: `n[1-4,7],login1`.
"""

from __future__ import annotations


def first(hostlist: str) -> str:
    """Return the first host: of `n[01-04,7],m3` it is `n01`; "" of an empty list."""
    depth = 0
    end = len(hostlist)
    for place, character in enumerate(hostlist):
        depth += (character == "[") - (character == "]")
        if character == "," and depth == 0:
            end = place
            break
    host = hostlist[:end]
    while "[" in host:
        before, _, rest = host.partition("[")
        ranges, _, after = rest.partition("]")
        number = ranges.split(",", 1)[0].split("-", 1)[0]
        host = before + number + after
    return host


def has_several(hostlist: str) -> bool:
    """Tell whether there is more than one host: `n1,n2` and `n[1-2]`, not `n1` nor `n[7]-ib`."""
    depth = 0
    for character in hostlist:
        depth += (character == "[") - (character == "]")
        if character == "," or (character == "-" and depth):
            return True
    return False
