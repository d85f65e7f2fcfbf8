"""Stand-ins for what a single flight needs of its surroundings: a worker in this process, an importer of nothing."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

from warmstart.host.deadline import Deadline
from warmstart.host.worker import Identity, Worker
from warmstart.images.asked import Site
from warmstart.images.importers.contract import Importer

NOBODY = Identity("nobody", 65534, 65534)


class InlineWorker:
    """Calls the functions right here; `calls` are their names."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def call(self, function: Callable[..., Any], *args: object, deadline: Deadline) -> object:
        """Call it, unless the deadline has passed: a real worker's pipe would not answer either."""
        assert isinstance(deadline, Deadline)
        self.calls.append(function.__name__)
        return function(*args)

    def close(self) -> None:
        """Close nothing."""


class NoImporter:
    """An importer that nothing may ask."""

    name = "none"
    identity = NOBODY


def site(store: Path, workspace: Path) -> Site:
    """Return a site with a store in a directory and no programs."""
    return Site(
        store=str(store),
        worker=cast(Worker, InlineWorker()),
        importer=lambda: cast(Importer, NoImporter()),
        validator=NOBODY,
        tag_ttl=600.0,
        workspace=str(workspace),
        node="n1",
        run_id="r1",
        job_id=7,
    )
