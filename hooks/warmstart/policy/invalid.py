"""Errors of the site's policy, and the problems that they list."""

from __future__ import annotations

from warmstart.errors import PolicyError
from warmstart.lean import Iterable, NamedTuple

_MOST_LISTED = 20


class Problem(NamedTuple):
    """One problem and its position. Line and column count from 1."""

    path: str
    line: int
    column: int
    problem: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}:{self.column}: {self.problem}"


class PolicyInvalid(PolicyError):
    """The policy's text is invalid. `listing` has the problems, one per line."""

    code = "policy-invalid"
    template = "{listing}"
    hint = "correct it; `warmstart policy check` lists the problems, docs/reference/policy.md every key"
    problems: tuple[Problem, ...] = ()  # all of them, in file order


class PolicyUntrusted(PolicyError):
    """A user other than root could change or replace the policy."""

    code = "policy-untrusted"
    template = "{path}: {problem}"
    hint = "make root the owner of the policy, conf.d and all directories above, and let nobody else write them"


class PolicyUnreadable(PolicyError):
    """The policy is missing or cannot be read."""

    code = "policy-unreadable"
    template = "{path}: {problem}"
    hint = "write a policy (start with share/warmstart/site.yaml), or create the file `off`"


def invalid(problems: Iterable[Problem]) -> PolicyInvalid:
    """Return the error for one or more problems. Its position is that of the first one in file order."""
    ordered = sorted(set(problems))
    listing = [str(problem) for problem in ordered[:_MOST_LISTED]]
    if len(ordered) > _MOST_LISTED:
        listing.append(f"and {len(ordered) - _MOST_LISTED} more")
    error = PolicyInvalid(**ordered[0]._asdict(), listing="\n".join(listing))
    error.problems = tuple(ordered)
    return error
