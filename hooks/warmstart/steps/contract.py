"""The shape of a step: a module with `NAME`, an options type and `run(context, options) -> Outcome`.

A step is idempotent, undoes itself on failure, and does not print, exit or read the environment. What it
found out goes into its outcome: the runner adds `record` to the record that later steps and the epilog
read, and `environment` to what the job will see. Steps share results through the record and never import each other.
"""

from __future__ import annotations

from typing import NamedTuple

from warmstart.audit.journal import Journal
from warmstart.errors import WarmstartError
from warmstart.host.deadline import Deadline
from warmstart.paths import NodePaths
from warmstart.policy.compiled import Policy
from warmstart.record import Record, RecordChange
from warmstart.store.client import StoreClient


class Context(NamedTuple):
    """What a step may use; all of it is decided before the first step runs."""

    policy: Policy
    paths: NodePaths
    record: Record
    audit: Journal
    deadline: Deadline
    store: StoreClient


class Outcome(NamedTuple):
    """What a step did."""

    state: str  # "changed" | "unchanged" | "skipped"
    detail: dict[str, object] = {}  # noqa: RUF012 - goes into the audit; never mutated
    record: RecordChange = {}  # noqa: RUF012 - fields of Record that it sets
    environment: dict[str, str] = {}  # noqa: RUF012 - variables that the job will see
    degraded: list[WarmstartError] = []  # noqa: RUF012 - non-fatal errors; the step otherwise succeeded
