"""The head node is the first of Slurm's compressed list."""

import pytest

from warmstart.slurm.nodes import first


@pytest.mark.parametrize(
    ("hostlist", "host"),
    [
        ("", ""),
        ("n1", "n1"),
        ("n1,n2", "n1"),
        ("n[1-4]", "n1"),
        ("n[03,07-09],m1", "n03"),
        ("rack[2-3]node[01-16]", "rack2node01"),
        ("n[7]-ib,n8", "n7-ib"),
    ],
)
def test_first_host(hostlist: str, host: str) -> None:
    """Ranges, zero padding, several brackets."""
    assert first(hostlist) == host
