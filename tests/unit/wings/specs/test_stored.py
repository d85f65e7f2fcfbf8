"""A node believes a job's spec only where nobody else can have written it, and only about this run of this job."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.lib.runs import a_job
from warmstart.host.deadline import after
from warmstart.host.identity import Identity
from warmstart.job import Job
from warmstart.store.client import StoreClient
from warmstart.wings.specs import stored
from warmstart.wings.specs.stored import Spec, SpecUnusable

pytestmark = pytest.mark.threat(14)

JOB = a_job(cluster="c1", restarts=1)
ME = Identity("me", os.getuid(), os.getgid())


def a_spec(**changes: object) -> Spec:
    """Return the spec of that job, with some fields changed."""
    told = Spec(
        cluster="c1",
        job_id=JOB.id,
        uid=JOB.uid,
        restarts=1,
        written=time.time(),
        job_name="nightly",
        array="6_1",
        comment="warmstart: profiles=numba",
        qos="high",
    )
    return told._replace(**changes)  # type: ignore[arg-type]


@pytest.fixture
def specs(tmp_path: Path) -> Path:
    directory = tmp_path / "specs"
    directory.mkdir(mode=0o755)
    return directory


def write(specs: Path, told: Spec, **changes: object) -> Path:
    """Put a spec in the job's place; `changes` go into its JSON."""
    path = specs / "c1.7.json"
    path.write_text(json.dumps({**json.loads(stored.as_json(told)), **changes}))
    path.chmod(0o644)
    return path


def informed(specs: Path, job: Job = JOB, owner: int | None = None) -> Job:
    """Do what a prolog does, in this process."""
    path = stored.path_of(str(specs), job.cluster, job.id)
    return stored.informed(job, path, stored.read(path, os.geteuid() if owner is None else owner))


def refusal(specs: Path, job: Job = JOB, owner: int | None = None) -> str:
    with pytest.raises(SpecUnusable) as caught:
        informed(specs, job, owner)
    return str(caught.value)


def test_a_good_spec_tells_what_slurmd_does_not(specs: Path) -> None:
    write(specs, a_spec())
    path = stored.path_of(str(specs), JOB.cluster, JOB.id)
    store = StoreClient(ME, str(specs), "n1-test")
    job = stored.informed(JOB, path, store.worker.run(after(60), stored.read, path, os.geteuid()))
    assert job == JOB._replace(qos="high", job_name="nightly", array="6_1")


def test_what_slurmd_tells_itself_is_its_own(specs: Path) -> None:
    """Slurm 26.05 tells the QOS; before 22.05 the comment is not told, and the spec has it."""
    write(specs, a_spec())
    assert informed(specs, JOB._replace(qos="low")).qos == "low"
    assert informed(specs, JOB._replace(comment_known=False)).comment == "warmstart: profiles=numba"


def test_what_the_controller_did_not_know_stays_unknown(specs: Path) -> None:
    write(specs, a_spec(qos=None))
    assert informed(specs).qos is None
    write(specs, a_spec(qos=""))
    assert informed(specs).qos == ""


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"job_id": 8}, "is of job 8 of uid 64201 in cluster 'c1'"),
        ({"uid": 0}, "is of job 7 of uid 0"),
        ({"cluster": "c2"}, "in cluster 'c2'"),
        ({"restarts": 0}, "is of run 0 of the job, and this is run 1"),
        ({"written": float("nan")}, "was written nan"),
        ({"written": "now"}, "is not what the controller's hook writes"),
        ({"written": 10**400}, "is not what the controller's hook writes"),
        ({"format": 2}, "is not what the controller's hook writes"),
        ({"uid": True}, "is not what the controller's hook writes"),
        ({"job_name": ["x"]}, "is not what the controller's hook writes"),
    ],
)
def test_a_spec_of_something_else_is_not_this_jobs(specs: Path, changes: dict[str, object], problem: str) -> None:
    """Another job's, user's, cluster's, an earlier run's, an old one's, another format's (docs/threats.md, row 14)."""
    write(specs, a_spec(), **changes)
    assert problem in refusal(specs)


@pytest.mark.parametrize(
    ("off", "problem"), [(-2 * stored.STALE_S, "was written 7"), (2 * stored.SKEW_S, "was written -")]
)
def test_a_spec_of_another_time_is_not_this_jobs(specs: Path, off: float, problem: str) -> None:
    write(specs, a_spec(), written=time.time() + off)
    assert problem in refusal(specs)


def foreign_link(path: Path) -> None:
    path.rename(path.with_name("moved"))
    path.symlink_to("moved")


def fifo(path: Path) -> None:
    path.unlink()
    os.mkfifo(path, 0o644)


@pytest.mark.parametrize(
    ("spoil", "problem"),
    [
        (lambda path: path.unlink(), "No such file"),
        (foreign_link, "Too many levels of symbolic links"),
        (fifo, "is not a regular file"),
        (lambda path: os.link(path, path.with_name("other")), "has 2 links"),
        (lambda path: path.chmod(0o664), "can be written by others"),
        (lambda path: path.chmod(0o646), "can be written by others"),
        (lambda path: path.parent.chmod(0o775), "/specs can be written by others"),
        (lambda path: path.parent.chmod(0o1777), "/specs can be written by others"),
        (lambda path: path.parent.parent.chmod(0o777), "can be written by others"),
        (lambda path: path.write_text(""), "is not JSON"),
        (lambda path: path.write_text("[" * 50000), "is not JSON"),
        (lambda path: path.write_text("[]"), "is not a JSON object"),
        (lambda path: path.write_text(" " * (stored.LONGEST + 1)), "is larger than"),
    ],
)
def test_a_file_that_another_could_have_written_is_ignored(
    specs: Path, spoil: Callable[[Path], None], problem: str
) -> None:
    """Links, modes, kinds, sizes, and the directories above (docs/threats.md, row 14)."""
    path = write(specs, a_spec())
    informed(specs)
    try:
        spoil(path)
        assert problem in refusal(specs)
    finally:
        specs.parent.chmod(0o700)


def test_a_file_of_another_owner_is_ignored(specs: Path) -> None:
    """Only slurmctld.user's word counts, not even root's where SlurmUser is another."""
    write(specs, a_spec())
    assert f"belongs to uid {os.geteuid()}" in refusal(specs, owner=os.geteuid() + 1)


def test_a_directory_that_a_link_leads_to_is_not_the_one(specs: Path) -> None:
    """Whoever can move the link chooses the spec."""
    write(specs, a_spec())
    (specs.parent / "link").symlink_to("specs")
    assert "Not a directory" in refusal(specs.parent / "link")


@pytest.mark.parametrize("cluster", ["", "../c1", "c1/x", "c.1"])
def test_a_cluster_s_name_can_not_lead_elsewhere(specs: Path, cluster: str) -> None:
    assert "is not the name of a cluster" in refusal(specs, JOB._replace(cluster=cluster))


JSON: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda children: st.lists(children, max_size=3) | st.dictionaries(st.text(max_size=5), children, max_size=3),
    max_leaves=5,
)


@settings(max_examples=200)
@given(st.dictionaries(st.sampled_from([*Spec._fields, "format", "more"]), JSON))
def test_no_content_raises_anything_else(specs: Path, changes: dict[str, object]) -> None:
    write(specs, a_spec(), **changes)
    try:
        job = informed(specs)
    except SpecUnusable:
        return
    assert all(value is None or isinstance(value, str) for value in (job.qos, job.job_name, job.array))
