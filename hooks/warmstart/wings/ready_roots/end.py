"""What a job's containers said, counted when the job is over. Runs as root; hot path.

enroot's hook leaves an empty file for each container (settings.OWN). Anybody in the job can forge them.
"""

from __future__ import annotations

import os

from warmstart.audit.log import Log
from warmstart.errors import WarmstartError
from warmstart.host.files import opened_dir
from warmstart.host.untrusted import opened_of_job
from warmstart.lean import suppress
from warmstart.paths import NodePaths
from warmstart.run import state
from warmstart.wings.ready_roots.settings import IN_WORDS, NAME, OWN, SAID, WAYS

LOOKED_AT = 10_000  # names that are read
NOT_KNOWN = "not known: enroot's hook said nothing"


def job_over(paths: NodePaths, job_id: int, audit: Log) -> None:
    """Log from what the job's containers started. For a run without ready roots there is nothing to say."""
    with suppress(WarmstartError, OSError):
        run = state.load(paths.state, job_id)
        if run is None or not run.workspace:
            return
        with opened_dir(run.directory) as base, opened_of_job(OWN, base) as fd, os.scandir(fd) as listing:
            names = [entry.name for _, entry in zip(range(LOOKED_AT), listing, strict=False)]
        counts = {way: sum(name.startswith(f"{SAID}{way}.") for name in names) for way in WAYS}
        text = ", ".join(f"{number} {IN_WORDS[way]}" for way, number in counts.items() if number)
        audit.put("told", NAME, **{"the job's containers": text or NOT_KNOWN})
