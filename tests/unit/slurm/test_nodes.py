"""Node lists: which nodes a job has, and which one is the head, the first of Slurm's compressed list."""

import pytest

from warmstart.slurm.nodes import expand, first, has_several


@pytest.mark.parametrize(
    ("hostlist", "hosts"),
    [
        ("", []),
        ("n1", ["n1"]),
        ("gpu-a-1", ["gpu-a-1"]),
        ("n[7]-ib", ["n7-ib"]),
        ("n1,n2", ["n1", "n2"]),
        ("n[7],n8", ["n7", "n8"]),
        ("n[03,07-08],m1", ["n03", "n07", "n08", "m1"]),
        ("n[08-10,12],login-1", ["n08", "n09", "n10", "n12", "login-1"]),
        ("rack[1-2]node[3,5]-ib", ["rack1node3-ib", "rack1node5-ib", "rack2node3-ib", "rack2node5-ib"]),
    ],
)
def test_a_list_is_expanded(hostlist: str, hosts: list[str]) -> None:
    """Numbers keep their width; a dash is a range only in brackets."""
    assert expand(hostlist) == hosts
    assert first(hostlist) == (hosts or [""])[0]
    assert has_several(hostlist) is (len(hosts) > 1)


@pytest.mark.parametrize(
    "hostlist",
    [
        *("[1-9]" * 9, "n[1-9][1-9]", "n[1-9,1-9,1-9]", "n[1-9],m[1-9]"),
        *("[1]" * 20_000, "a" * 300, f"n[{'0' * 300}1-9]"),
        *("n[1-", "n[]"),
    ],
)
def test_a_list_of_a_users_takes_no_more_than_it_may(hostlist: str) -> None:
    """Ten hosts, here: neither more of them, nor longer names."""
    with pytest.raises(ValueError, match=r"."):
        expand(hostlist, most=10)
