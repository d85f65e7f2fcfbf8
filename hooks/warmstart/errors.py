"""Expected failures, by whose fault they are (docs/architecture.md, rule 2). Imports nothing from the package.

Anything that is not a `WarmstartError` is a bug: audited with its traceback, never a drain.
Every concrete class is in the module that raises it, and listed in docs/errors.md; a test compares that list with the
code.
"""

from __future__ import annotations

from typing import ClassVar

Fields = dict[str, object]


class WarmstartError(Exception):
    """Base of all expected failures; `kind` decides what a hook does with one."""

    kind: ClassVar[str]
    code: ClassVar[str]
    template: ClassVar[str]  # not the docstring: python -OO strips those
    hint: ClassVar[str] = ""

    def __init__(self, **fields: object) -> None:
        super().__init__(fields)
        self.fields: Fields = fields

    def __str__(self) -> str:
        return self.template.format_map(self.fields)

    def as_audit(self) -> Fields:
        """Return the `error` object of an audit line: kind, code, reason, hint."""
        return {"kind": self.kind, "code": self.code, "reason": str(self), "hint": self.hint}


class UserError(WarmstartError):
    """The job's own request or files are wrong: a verdict, told to the job, not to the node."""

    kind = "user"


class NodeError(WarmstartError):
    """This node cannot serve jobs: the only kind that drains it. Never what a user can cause."""

    kind = "node"


class ResourceError(WarmstartError):
    """The node is short of what a user can use up (space, inodes, time): the job runs cold."""

    kind = "resource"


class StoreError(WarmstartError):
    """The shared store or a registry is unwell: a cache degrades, a missing image is a verdict."""

    kind = "store"


class PolicyError(WarmstartError):
    """The site's policy is wrong: the last good one stays in force, loudly."""

    kind = "policy"


def by_code(code: str) -> type[WarmstartError] | None:
    """Return the class with this code among all that are imported, or None."""
    pending: list[type[WarmstartError]] = [WarmstartError]
    while pending:
        cls = pending.pop()
        if cls.__dict__.get("code") == code:
            return cls
        pending.extend(cls.__subclasses__())
    return None
