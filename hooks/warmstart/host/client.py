"""Client for root's work in a job's mount namespace: a child process, since joining is irreversible and may hang."""

from __future__ import annotations

from warmstart.host import namespaces
from warmstart.host.deadline import Deadline
from warmstart.host.identity import ROOT
from warmstart.host.worker import Worker


def show_in_namespace(  # noqa: PLR0917 - what, where, until when
    namespace: str, parent: str, name: str, owner: int, target: str, deadline: Deadline
) -> None:
    """Bind-mount `parent`/`name`, owned by uid `owner`, at `target` in the mount namespace at the path `namespace`.

    Raises `OSError` (`PermissionError` if anybody but root could change the source or the target), and `WorkerSilent`
    at the deadline.
    """
    with Worker(ROOT) as worker:
        worker.run(deadline, namespaces.show, namespace, parent, name, owner, target)
