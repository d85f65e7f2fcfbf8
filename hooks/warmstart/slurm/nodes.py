"""A job's nodes from a hook's environment, without a query to Slurm: host lists, and whether the head node is shared.

Host lists have the grammar that `hostlist_create` in src/common/hostlist.c prints: `n[1-4,7],login1`.

Since 23.02, SLURM_JOB_OVERSUBSCRIBE says whether nodes are shared (values: squeue(1), OverSubscribe). On 22.05 a hook
knows only the number of processors that the job has on the node. If it has all of them, there is no room for a
neighbour, unless the partition has OverSubscribe=FORCE or YES. If in doubt, the node counts as shared.
"""

from __future__ import annotations

import os

from warmstart.job import Job


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


def expand(hostlist: str, most: int = 1 << 16) -> frozenset[str]:
    """Return the hosts of a host list. Raises `ValueError` if it is malformed, or has more than `most`."""
    found: set[str] = set()
    for part in _split(hostlist):
        found.update(_expanded(part, most))
        if len(found) > most:
            raise ValueError(f"more than {most} hosts")
    return frozenset(found)


def _expanded(part: str, most: int) -> list[str]:
    before, bracket, rest = part.partition("[")
    if not bracket:
        return [part] if part else []
    ranges, _, after = rest.partition("]")
    numbers: list[str] = []
    for item in ranges.split(","):
        low, _, high = item.partition("-")
        if int(high or low) - int(low) >= most:
            raise ValueError(f"more than {most} hosts")
        numbers += [str(number).zfill(len(low)) for number in range(int(low), int(high or low) + 1)]
    tails = _expanded(after, most) if after else [""]
    return [f"{before}{number}{tail}" for number in numbers for tail in tails]


def _split(hostlist: str) -> list[str]:
    parts, depth = [""], 0
    for character in hostlist:
        depth += (character == "[") - (character == "]")
        if character == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += character
    return parts


def has_several(hostlist: str) -> bool:
    """Return whether a host list has several hosts: true for `n1,n2` and `n[1-2]`, false for `n1` and `n[7]-ib`."""
    depth = 0
    for character in hostlist:
        depth += (character == "[") - (character == "]")
        if character == "," or (character == "-" and depth):
            return True
    return False


def has_first_node_alone(job: Job) -> bool:
    """Return whether the job has its first node to itself. Call this on that node.

    `job.cpus_per_node` has the form `4(x2),2`.
    """
    if job.oversubscribe:
        return job.oversubscribe == "NO"
    cpus = job.cpus_per_node.partition(",")[0].partition("(")[0]
    return cpus.isdigit() and int(cpus) >= (os.cpu_count() or 1)
