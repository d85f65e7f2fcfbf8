"""The errors of the site's policy, and the problems that they list.

Hot path: a hook reports a remembered error (`refresh`) without loading a parser.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from warmstart.errors import PolicyError

_MOST_LISTED = 20


class Problem(NamedTuple):
    """One problem and its position; line and column count from 1."""

    path: str
    line: int
    column: int
    problem: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}:{self.column}: {self.problem}"


class PolicyInvalid(PolicyError):
    """The policy's text is wrong; `listing` has every problem, one in a line."""

    code = "policy-invalid"
    template = "{listing}"
    hint = "`warmstart policy check` tells the same; docs/policy.md has every key"


class PolicyUntrusted(PolicyError):
    """Somebody other than root can change, or swap, what root would read as the policy."""

    code = "policy-untrusted"
    template = "{path}: {problem}"
    hint = "the policy, conf.d and all directories above belong to root, writable for root alone"


class PolicyUnreadable(PolicyError):
    """The policy is not there, or cannot be read."""

    code = "policy-unreadable"
    template = "{path}: {problem}"
    hint = "write a policy (policies/site.yaml is the documented default) or create the file `off`"


def invalid(problems: Iterable[Problem]) -> PolicyInvalid:
    """Return the error for one or more problems; its position is that of the first in file order."""
    ordered = sorted(set(problems))
    listing = [str(problem) for problem in ordered[:_MOST_LISTED]]
    if len(ordered) > _MOST_LISTED:
        listing.append(f"and {len(ordered) - _MOST_LISTED} more")
    return PolicyInvalid(**ordered[0]._asdict(), listing="\n".join(listing))
