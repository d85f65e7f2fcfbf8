"""How long a directory's path may be for programs to bind Unix sockets in it. Hot path.

`sun_path` has 108 bytes with the NUL (unix(7)); a longer one is refused, by every language's library.
"""

from __future__ import annotations

LONGEST = 107
# What programs add to TMPDIR: vLLM `/` and a UUID, 37; Python's multiprocessing `/pymp-XXXXXXXX/listener-XXXXXXXX`, 32.
ROOM = 37
# What a run's directory adds to WORKSPACE/NODE; a job id has ten digits at most.
RUN = len("/4294967295.0a1b2c3d/tmp")


def has_room(directory: str) -> bool:
    """Tell whether programs can bind their sockets below the directory."""
    return len(directory.encode("utf-8", "surrogateescape")) + ROOM <= LONGEST


def longest_node(workspace: str) -> int:
    """Return how many bytes a node's name may have for TMPDIR below `workspace`; less than 1: no node's fits."""
    return LONGEST - ROOM - RUN - len(f"{workspace}/".encode())
