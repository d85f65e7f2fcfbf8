"""A stand-in for pyslurm 25.11.2: the names of its API that warmstart uses, and how they behave.

tests/slurm/wings/specs/pyslurm_real.py shows that the real one behaves so.
"""

from __future__ import annotations

from pathlib import Path

from warmstart.slurm.facts import JobFacts

VERSION = "25.11.2"

JOB = JobFacts(7, "RUNNING", "high", "5_2", 1795333348)  # that it tells of; 8 is another one

_SOURCE = """\
class RPCError(Exception):
    def __init__(self, errno=-1, msg=None):
        self.errno = errno
        super().__init__(msg)

class Job:
    state, qos, array_id, array_task_id, array_tasks_waiting = "RUNNING", "high", 5, 2, None
    eligible_time = 1795333348

    def __init__(self, job_id):
        if not hasattr(Job, "id"):
            self.id = job_id

    @staticmethod
    def load(job_id):
        if job_id == 99:
            raise RPCError(2017, "Invalid job id specified")
        return Job(job_id)

class slurmctld:
    class Config:
        accounting_storage_enforce = ["LIMITS"]
        prolog, epilog, prolog_slurmctld, epilog_slurmctld = ["/site/prolog"], None, None, None

        @staticmethod
        def load():
            return slurmctld.Config()

{broken}
"""


def install(libraries: Path, broken: str = "") -> None:
    """Install it as `pip install --target` does, with the code `broken` appended."""
    package = libraries / "pyslurm"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text(_SOURCE.format(broken=broken))
    metadata = libraries / f"pyslurm-{VERSION}.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: pyslurm\nVersion: {VERSION}\n")
