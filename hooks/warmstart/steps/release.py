"""Step `release`: remove what the prolog made for this run, and only that (design, rule 8).

Every path is recomputed from the record's job id and run id. What a job's process still holds is no
reason to drain: it is left, said, and removed by the next run or by hand.
"""

from __future__ import annotations

import errno
from typing import NamedTuple

from warmstart import record as records
from warmstart import view
from warmstart.errors import ResourceError
from warmstart.host.deadline import Deadline
from warmstart.host.files import opened_dir
from warmstart.host.trees import remove_tree
from warmstart.paths import NodePaths
from warmstart.record import Record
from warmstart.steps.contract import Context, Outcome

NAME = "release"


class WorkspaceBusy(ResourceError):
    """Something under the workspace could not be removed."""

    code = "workspace-busy"
    template = "workspace {path} is not all removed: {problem}"
    hint = "which process or mount holds it (fuser -vm, findmnt)? remove the directory by hand afterwards"


class Options(NamedTuple):
    """Release has no options: everything is in the record."""


def run(context: Context, options: Options) -> Outcome:  # noqa: ARG001 - the shape of a step
    """Remove workspace, view and record."""
    release(context.paths, context.record, context.deadline)
    return Outcome("changed")


def release(paths: NodePaths, record: Record, deadline: Deadline) -> None:
    """Do it for any record, e.g. that of an earlier run which no epilog followed."""
    view.remove(paths.view, record.view_id)
    if record.workspace:
        _remove_workspace(record, deadline)
    records.forget(paths.state, record.job_id)


def _remove_workspace(record: Record, deadline: Deadline) -> None:
    try:
        with opened_dir(record.workspace) as root, opened_dir(record.node, root) as node:
            remove_tree(node, record.run_name, deadline)
    except FileNotFoundError:
        return
    except OSError as error:
        if error.errno == errno.EROFS:
            return  # nothing was written there, and nothing can be removed
        raise WorkspaceBusy(path=record.run_directory, problem=error.strerror) from error
