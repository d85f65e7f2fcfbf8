"""Two jobs on four nodes harvest the same entries at once, again and again, while others read.

See docs/architecture.md, rule 1.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import pytest

from tests.lib.late_node import LateNode
from tests.lib.numba_entries import numba_entries
from warmstart.store import manifest

pytestmark = pytest.mark.usefixtures("capable_host")

NODES = ("n1", "n2", "n3", "n4")


@pytest.fixture
def nodes(base: Path) -> list[LateNode]:
    """Yield four nodes of one site."""
    first = LateNode(base)
    return [first, *(LateNode(base, name=name, site=first.site) for name in NODES[1:])]


def harvest_at_once(nodes: list[LateNode], number: int) -> None:
    """Let each node's epilog harvest the shared entry, each with other contents, and one entry of its own."""
    start, go = os.pipe()
    pids = []
    for place, node in enumerate(nodes):
        # Nodes 1 and 2 are one job's, 3 and 4 the other's: its two nodes made the same bytes.
        shared = numba_entries(number, number + 1000, salt=b"job %d" % (place // 2))
        record = node.run_of(100 * number + place // 2, entries={**shared, **numba_entries(5000 + 4 * number + place)})
        pid = os.fork()
        if not pid:
            status = 1
            try:
                os.close(go)
                os.read(start, 1)  # ends for all when the parent closes it
                node.epilog(record, budget=60.0)
                status = 0
            finally:
                os._exit(status)
        pids.append(pid)
    os.close(start)
    os.close(go)
    nodes[0].site.seen()  # a reader between them
    assert [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids] == [0] * len(nodes)


@pytest.mark.parametrize("rounds", [8, pytest.param(20, marks=pytest.mark.sweep)])
def test_every_reader_sees_each_entry_once_and_whole(nodes: list[LateNode], rounds: int) -> None:
    """The first publisher has the whole entry, and readers see it unchanged from then on."""
    site = nodes[0].site
    last: dict[str, str] = {}
    for number in range(1, rounds + 1):
        harvest_at_once(nodes, number)
        now = site.seen()  # fails where an entry comes twice, or a bundle is not whole
        assert {entry: now[entry] for entry in last} == last
        assert len(now) - len(last) == 2 + len(nodes)
        for entry in now.keys() - last.keys():
            assert_of_one_maker(nodes[0], entry, now[entry])
        last = now
    assert [node.left() for node in nodes] == [[]] * len(nodes)
    assert site.command("cache", "verify") == 0


def assert_of_one_maker(node: LateNode, entry: str, bundle: str) -> None:
    """Check that all files of an entry come from one of the jobs that made it."""
    found = manifest.decode(bundle, (node.site.directory() / f"{bundle}.json").read_bytes())
    number = int(entry.rpartition("-")[2].partition(".")[0])
    salts = (b"",) if number > 5000 else (b"job 0", b"job 1")
    made = [numba_entries(number, salt=salt)[entry] for salt in salts]
    hashes = {path: file.sha256 for path, file in found.entries[entry].items()}
    assert hashes in [{path: hashlib.sha256(data).hexdigest() for path, data in files.items()} for files in made]
