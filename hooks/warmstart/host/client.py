"""Root's work in a job's mount namespace: in a process of its own, since joining can't be undone and may hang."""

from __future__ import annotations

from warmstart.host import namespaces
from warmstart.host.deadline import Deadline
from warmstart.host.identity import ROOT
from warmstart.host.worker import Worker


def show_in_namespace(  # noqa: PLR0917 - what, where, until when
    namespace: str, parent: str, name: str, owner: int, target: str, deadline: Deadline
) -> None:
    """Bind `parent`/`name`, uid `owner`'s, at `target` in the mount namespace at the path `namespace`.

    `OSError`, with `PermissionError` where somebody but root could change what is bound or where; `WorkerSilent` at
    the deadline.
    """
    with Worker(ROOT) as worker:
        worker.run(deadline, namespaces.show, namespace, parent, name, owner, target)
