"""A stand-in for pyslurm 25.11.2: the names of its API that warmstart uses, and how they behave.

`API` is what tests/integration/test_pyslurm_contract.py looks for in the released source; nothing of that is here.
"""

from __future__ import annotations

from pathlib import Path

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
    ],
    "pyslurm/core/error.pyx": [
        r"^class PyslurmError\(Exception\):$",
        r"^class RPCError\(PyslurmError\):$",
        r"def __init__\(self, errno=slurm\.SLURM_ERROR, msg=None\):",
    ],
    "pyslurm/utils/cstr.pyx": [r"^cdef to_unicode\(char \*_str, default=None\):$"],
}

_SOURCE = """\
class RPCError(Exception):
    def __init__(self, errno=-1, msg=None):
        super().__init__(msg)

class Job:
    qos = {qos!r}

    @staticmethod
    def load(job_id):
        job = Job()
        job.__dict__.setdefault("id", job_id) if not hasattr(Job, "id") else None
        return job

{broken}
"""


def install(libraries: Path, qos: str | None, broken: str = "") -> None:
    """Install it as `pip install --target` does, with the code `broken` appended."""
    package = libraries / "pyslurm"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text(_SOURCE.format(qos=qos, broken=broken))
    metadata = libraries / f"pyslurm-{VERSION}.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: pyslurm\nVersion: {VERSION}\n")
