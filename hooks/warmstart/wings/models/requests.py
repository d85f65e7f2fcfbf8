"""Models that this node is to copy off the clock of jobs. Prologs ask; `attempts` has them copied."""

from __future__ import annotations

from warmstart.lean import TYPE_CHECKING, NamedTuple, sha256
from warmstart.policy.shared import SharedPath
from warmstart.queue import Asker, Kind, Queue

if TYPE_CHECKING:
    from warmstart.paths import NodePaths

COPIES = Kind("models", most=8, backoff_s=300.0)
TOO_MANY = "too many of your models wait to be copied already"


class ModelRequest(NamedTuple):
    """What a prolog asks for."""

    model: str  # as the job names it
    gid: int
    asker: Asker
    shared: SharedPath | None = None  # by which many have one copy, if its files are so
    problem: str = ""  # of the last attempt
    read: int = 0  # bytes, in earlier turns
    seconds: float = 0.0  # of these
    proven: tuple[str, ...] = ()  # versions of files of which another's copy is this user's, too

    @property
    def key(self) -> str:
        """The item's."""
        text = f"{self.shared.scope if self.shared else ''}\0{self.asker.uid}\0{self.model}"
        return str(sha256(text.encode("utf-8", "surrogateescape")).hexdigest()[:32])


def ask(paths: NodePaths, request: ModelRequest) -> str:
    """Have a model copied; return why it will not be soon, "" if it will. Raises `OSError`."""
    queue = Queue(paths, COPIES)
    queue.forget_old()
    item = queue.find(request.key)
    known = queue.read(item, ModelRequest) if item else None
    if known is None and not queue.add(str(request.asker.uid), request.key, request):
        return TOO_MANY
    queue.start_due()
    return known.problem if known else ""
