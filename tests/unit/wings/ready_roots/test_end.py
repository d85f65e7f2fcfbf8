"""What a job's containers said is counted when it is over."""

from __future__ import annotations

import os
from pathlib import Path

from tests.lib.runs import events
from warmstart import record as records
from warmstart.host.deadline import after
from warmstart.steps.contract import Context
from warmstart.wings.ready_roots import end
from warmstart.wings.ready_roots.settings import OWN


def ended(context: Context) -> list[tuple[int, int, int]]:
    """End the job; return what has been told of its containers."""
    end.job_over(context.paths, "n1", 7, context.audit, after(5))
    told = events(context, "containers.started") if os.path.isdir(context.paths.journal) else []
    return [(event["tree"], event["image"], event["unpacked"]) for event in told]


def test_containers_are_counted_by_their_way(context: Context, tmp_path: Path) -> None:
    """A name of another form is none. A job without ready roots, or with a link in their place, says nothing."""
    own = Path(context.record.run_directory, OWN)
    assert ended(context) == []
    records.save(context.paths.state, context.record)
    own.parent.mkdir(parents=True)
    assert ended(context) == []
    own.symlink_to(tmp_path)
    assert ended(context) == []
    own.unlink()
    own.mkdir()
    for name in ("from-tree.a", "from-tree.b", "from-image.c", "from-moon.d", "71.x"):
        (own / name).touch()
    assert ended(context) == [(2, 1, 0)]
