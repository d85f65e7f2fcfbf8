"""The interface of a step: a module with `NAME`, an options type and `run(context, options) -> Outcome`.

A step is idempotent, undoes itself on failure, and does not print, exit or read the environment. It returns its results
in an `Outcome`: later steps and the epilog get its `run`, and the runner adds `environment` to the job's variables.
Steps share results only through the run and never import each other.
"""

from __future__ import annotations

from warmstart.audit.log import Log
from warmstart.errors import ResourceError, WarmstartError
from warmstart.host.deadline import Deadline
from warmstart.lean import NamedTuple
from warmstart.paths import NodePaths
from warmstart.policy.keys import Policy
from warmstart.run.state import Run
from warmstart.store.client import StoreClient


class CacheFailed(ResourceError):
    """A profile's cache could not be filled or harvested: the node's disk refuses, or the job replaced directories."""

    code = "cache-failed"
    template = "profile {profile}: {problem}"
    hint = "read the reason: did the job replace its cache's directories? else see what the kernel says (dmesg)"


class Context(NamedTuple):
    """What a step may use. Only the run changes between steps."""

    policy: Policy
    paths: NodePaths
    run: Run
    audit: Log
    deadline: Deadline
    store: StoreClient


class Outcome(NamedTuple):
    """What a step did."""

    run: Run | None = None  # with what the step has added, None: nothing
    detail: dict[str, object] = {}  # noqa: RUF012 - what `told` says of the step; never mutated
    environment: dict[str, str] = {}  # noqa: RUF012 - variables for the job
    degraded: list[WarmstartError] = []  # noqa: RUF012 - non-fatal errors; the step otherwise succeeded
    notices: tuple[str, ...] = ()  # lines for the job's output that are no errors
    topics: tuple[str, ...] = ()  # of the barrier (`Barrier.path`), which this node takes down at the run's end
