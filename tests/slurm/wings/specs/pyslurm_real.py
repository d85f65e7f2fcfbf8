r"""The real pyslurm says of a running slurmctld what Slurm's commands say.

Run by hand: PyPI has pyslurm for Slurm 25.11 only, and no Debian has that release. With a Slurm in /opt/slurm:

    SLURM_LIB_DIR=/opt/slurm/lib SLURM_INCLUDE_DIR=/opt/slurm/include \
        python3 -m pip install --no-deps --target /opt/pyslurm 'pyslurm==25.11.*'
    WARMSTART_PYSLURM=/opt/pyslurm tests/releases/with-slurm /opt/slurm \
        .venv/bin/python -m pytest -q tests/slurm/wings/specs/pyslurm_real.py
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from tests.lib.accounts import ALICE, lookup
from tests.lib.processes import wait_until
from warmstart.host.deadline import after
from warmstart.host.identity import Identity
from warmstart.slurm.facts import Access, JobFacts
from warmstart.slurm.slurmctld import LookUpFailed, Slurmctld
from warmstart.wings.specs import pyslurm_lookup

if TYPE_CHECKING:
    from tests.lib.site import Site

SLEEP = "#!/bin/sh\nexec sleep 600\n"


@pytest.fixture(scope="module")
def pyslurm() -> str:
    """Return the directory of a pyslurm."""
    directory = os.environ["WARMSTART_PYSLURM"]
    assert pyslurm_lookup.release(directory)
    return directory


def test_both_say_the_same(site: Site, pyslurm: str) -> None:
    """A job, tasks of an array, one that is not there, the configuration, a controller that is not there."""
    cluster = site.cluster
    conf = str(cluster.base / "etc" / "slurm.conf")
    slurm = lookup("slurm", cluster.base)
    identity = Identity("slurm", slurm.uid, slurm.gid)
    by_pyslurm = Slurmctld(Access("/usr/bin/scontrol", conf, pyslurm, identity))
    by_commands = Slurmctld(Access("/usr/bin/scontrol", conf))
    job_id = cluster.submit(SLEEP, ALICE)
    array = cluster.submit(SLEEP, ALICE, "--array=0-0")
    held = cluster.submit(SLEEP, ALICE, "--begin=now+1hour", "--array=3-9%2")
    try:
        running = [job_id, array]
        wait_until("the jobs", lambda: states(by_commands, running) == {"RUNNING"}, 60)
        assert states(by_pyslurm, running) == {"RUNNING"}
        assert (by_pyslurm.source, by_commands.source) == ("pyslurm", "squeue")
        for known in [*running, held]:
            assert by_pyslurm.job(known, after(30)) == by_commands.job(known, after(30))
        several = [*running, held, 99_999]
        assert ordered(by_pyslurm, several) == ordered(by_commands, several)
        pending = by_pyslurm.job(held, after(30))
        assert pending is not None
        assert (pending.state, pending.array.partition("_")[0]) == ("PENDING", str(held))
        assert by_pyslurm.job(99_999, after(30)) is None
        assert by_pyslurm.enforced(after(30)) == by_commands.enforced(after(30))
    finally:
        for known in (job_id, array, held):
            cluster.cancel(known)
    cluster.wait_idle()


def test_a_controller_that_is_not_there(site: Site, pyslurm: str) -> None:
    """In time, and with Slurm's own words."""
    conf = site.cluster.base / "etc" / "nobody.conf"
    text = (site.cluster.base / "etc" / "slurm.conf").read_text()
    conf.write_text(text.replace("SlurmctldPort=", "SlurmctldPort=1 #"))
    with pytest.raises(LookUpFailed, match=r"Unable to contact|deadline"):
        Slurmctld(Access("/usr/bin/scontrol", str(conf), pyslurm)).job(1, after(10))


def states(slurmctld: Slurmctld, job_ids: list[int]) -> set[str]:
    """Return the states of jobs that slurmctld knows."""
    return {job.state for job in ordered(slurmctld, job_ids)}


def ordered(slurmctld: Slurmctld, job_ids: list[int]) -> list[JobFacts]:
    """Return those of the jobs that slurmctld knows, by id."""
    return sorted(filter(None, (slurmctld.job(job_id, after(30)) for job_id in job_ids)))
