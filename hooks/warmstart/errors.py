"""Base classes of expected failures, one per kind of fault (docs/architecture.md, rule 2).

Imports nothing from the package. Any other exception is a bug: it is audited with its traceback and never drains the
node. Concrete classes are in the modules that raise them, or in one that these import. docs/reference/errors.md and the
pages of wings list their codes; a class without a code of its own has that of its base.
"""

from __future__ import annotations

from warmstart.lean import TYPE_CHECKING

if TYPE_CHECKING:
    from typing import ClassVar

Fields = dict[str, object]


class WarmstartError(Exception):
    """Base of all expected failures. `kind` decides how a hook handles it.

    A field `also` is a clause at the end of the message, of whoever knows more than the code that raised the error.
    """

    kind: ClassVar[str]
    code: ClassVar[str]
    template: ClassVar[str]  # not the docstring: python -OO strips those
    hint: str = ""

    def __init__(self, **fields: object) -> None:
        super().__init__(fields)
        self.fields: Fields = fields

    def __str__(self) -> str:
        return self.template.format_map(self.fields) + str(self.fields.get("also", ""))

    def as_audit(self) -> Fields:
        """Return the `error` object of an audit line: kind, code, reason, hint."""
        return {"kind": self.kind, "code": self.code, "reason": str(self), "hint": self.hint}


class UserError(WarmstartError):
    """The job's request or files are wrong. The job fails with a verdict; the node stays in service."""

    kind = "user"


class NodeError(WarmstartError):
    """This node cannot serve jobs. The only kind that drains the node; users must not be able to cause it."""

    kind = "node"


class ResourceError(WarmstartError):
    """The node lacks something that users can exhaust (space, inodes, time). The job runs cold."""

    kind = "resource"


class StoreError(WarmstartError):
    """The shared store or a registry fails. A missing cache lets the job run cold; a missing image is a verdict."""

    kind = "store"


class PolicyError(WarmstartError):
    """The site's policy is wrong. The last good policy stays in force, and the error is audited."""

    kind = "policy"


def by_code(code: str) -> type[WarmstartError] | None:
    """Return the imported error class with this code, or None."""
    pending: list[type[WarmstartError]] = [WarmstartError]
    while pending:
        cls = pending.pop()
        if cls.__dict__.get("code") == code:
            return cls
        pending.extend(cls.__subclasses__())
    return None
