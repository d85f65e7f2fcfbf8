"""What an administrator reads of a policy that is wrong: every problem once, in the order of the file."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from warmstart.policy.invalid import _MOST_LISTED, Problem, invalid

PROBLEMS = st.builds(Problem, st.sampled_from(["a", "b"]), st.integers(1, 30), st.integers(1, 9), st.just("wrong"))


@given(st.lists(PROBLEMS, min_size=1, max_size=40))
def test_problems_are_listed_once_and_in_order(problems: list[Problem]) -> None:
    """The error's own position is that of the first; a long list ends with how many there are more."""
    error = invalid(problems)
    listed = str(error).splitlines()
    expected = [str(problem) for problem in sorted(set(problems))]
    assert listed[:_MOST_LISTED] == expected[:_MOST_LISTED]
    assert listed[_MOST_LISTED:] == (
        [f"and {len(expected) - _MOST_LISTED} more"] if len(expected) > _MOST_LISTED else []
    )
    assert "{path}:{line}:{column}: {problem}".format_map(error.fields) == listed[0]


def test_lines_count_as_numbers() -> None:
    """The second line comes before the tenth."""
    error = invalid([Problem("p", 10, 1, "later"), Problem("p", 2, 1, "sooner")])
    assert str(error) == "p:2:1: sooner\np:10:1: later"
    assert error.kind == "policy"
