"""A stand-in for pyslurm 25.11.2: the names of its API that warmstart uses, and how they behave.

`API` is what integration/test_pyslurm_contract.py looks for in the released source; nothing of that is here.
"""

from __future__ import annotations

from pathlib import Path

from warmstart.slurm.facts import JobFacts

VERSION = "25.11.2"
# Names that must be there: in which file of the source, and the line that says so (a regular expression).
API = {
    "pyslurm/version.py": [rf'^__version__ = "{VERSION}"$'],
    "pyslurm/__init__.py": [
        r"^from pyslurm\.core\.job import \($",
        r"^    Job,$",
        r"^    RPCError,$",
        r"^    slurm_init\(\)$",
    ],
    "pyslurm/core/job/job.pyx": [
        r"    @staticmethod\n    def load\(job_id\):",
        r"verify_rpc\(slurm_load_job\(&info, job_id, ",
        r"wrap = Job\.from_ptr\(&info\.job_array\[0\]\)",
        r"    @property\n    def id\(self\):\n        return self\.ptr\.job_id\n",
        r"    @property\n    def qos\(self\):\n        return cstr\.to_unicode\(self\.ptr\.qos\)\n",
        r"    def state\(self\):\n        return cstr\.to_unicode\(slurm_job_state_string\(self\.ptr\.job_state\)\)\n",
        r"    def array_id\(self\):\n        return u32_parse\(self\.ptr\.array_job_id\)\n",
        r"    def array_task_id\(self\):\n        return u32_parse\(self\.ptr\.array_task_id\)\n",
        r"    def array_tasks_waiting\(self\):",
        r"    def eligible_time\(self\):\n        return _raw_time\(self\.ptr\.eligible_time\)\n",
    ],
    "pyslurm/core/slurmctld/config.pyx": [
        r"    def accounting_storage_enforce\(self\):",
        r"    def prolog\(self\):\n        return cstr\.to_list_with_count",
        r"    def epilog\(self\):\n        return cstr\.to_list_with_count",
        r"    def prolog_slurmctld\(self\):\n        return cstr\.to_list_with_count",
        r"    def epilog_slurmctld\(self\):\n        return cstr\.to_list_with_count",
    ],
    "pyslurm/core/error.pyx": [
        r"^class PyslurmError\(Exception\):$",
        r"^class RPCError\(PyslurmError\):$",
        r"def __init__\(self, errno=slurm\.SLURM_ERROR, msg=None\):",
        r"self\.errno = errno",
    ],
    "pyslurm/utils/cstr.pyx": [r"^cdef to_unicode\(char \*_str, default=None\):$"],
}

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
