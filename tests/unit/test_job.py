"""A hook reads Slurm's variables once, strictly."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from warmstart.job import JobUnreadable, from_environment

SLURM = {
    "SLURM_JOB_ID": "7",
    "SLURM_JOB_UID": "1000",
    "SLURM_JOB_GID": "1000",
    "SLURM_JOB_USER": "a",
    "SLURMD_NODENAME": "n1",
    "SLURM_JOB_PARTITION": "main",
}


TOLD = {  # in Slurm's words, and what becomes of it
    "id": ("SLURM_JOB_ID", "8", 8),
    "account": ("SLURM_JOB_ACCOUNT", "(null)", ""),
    "nodelist": ("SLURM_NODELIST", "n[1-2]", "n[1-2]"),
    "view_id": ("SLURM_HET_JOB_ID", "6", 6),  # the id that the tasks of a heterogeneous job see
    "restarts": ("SLURM_JOB_RESTART_COUNT", "2", 2),
    "cpus_per_node": ("SLURM_JOB_CPUS_PER_NODE", "4(x2),2", "4(x2),2"),
    "oversubscribe": ("SLURM_JOB_OVERSUBSCRIBE", "NO", "NO"),
    "exclusive": ("SLURM_JOB_EXCLUSIVE", "NODE", "NODE"),
    "warm_image": ("SPANK_WARM_IMAGE", "a:1", "a:1"),
    "warm_profile": ("SPANK_WARM_PROFILE", "numba", "numba"),
    "no_warm": ("SPANK_NO_WARM", "1", True),
    "qos": ("SLURM_JOB_QOS", "(null)", ""),
}


def test_a_job_is_what_slurm_tells() -> None:
    job = from_environment({**SLURM, **{variable: value for variable, value, _ in TOLD.values()}})
    assert {field: getattr(job, field) for field in TOLD} == {field: meant for field, (*_, meant) in TOLD.items()}


def test_what_slurm_does_not_tell_is_empty_or_not_known() -> None:
    """Not the same as "none": the QOS before 26.05, job name and array never; the comment since 22.05."""
    job = from_environment(SLURM)
    assert (job.id, job.user, job.view_id, job.restarts) == (7, "a", 7, 0)
    assert (job.warm_image, job.warm_profile, job.no_warm) == ("", "", False)
    assert (job.qos, job.job_name, job.array, job.comment_known) == (None, None, None, False)
    assert from_environment({**SLURM, "SLURM_JOB_RESTART_COUNT": "0"}).comment_known


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("SLURM_JOB_ID", "0"),
        ("SLURM_JOB_ID", "7/../8"),
        ("SLURM_JOB_UID", "-1"),
        ("SLURM_JOB_UID", "4294967295"),
        ("SLURM_JOB_GID", "٣"),
        ("SLURM_JOB_USER", "../root"),
        ("SLURM_JOB_USER", "a\n"),
        ("SLURMD_NODENAME", "n1/.."),
    ],
)
def test_what_slurm_never_sets_is_refused(variable: str, value: str) -> None:
    with pytest.raises(JobUnreadable, match=variable):
        from_environment({**SLURM, variable: value})


@pytest.mark.parametrize("variable", sorted(SLURM.keys() - {"SLURM_JOB_PARTITION"}))
def test_a_missing_variable_is_named(variable: str) -> None:
    with pytest.raises(JobUnreadable, match=f"{variable} is not set"):
        from_environment({name: value for name, value in SLURM.items() if name != variable})


@given(st.dictionaries(st.sampled_from(sorted(SLURM)), st.text()))
def test_no_environment_raises_anything_else(changes: dict[str, str]) -> None:
    try:
        job = from_environment({**SLURM, **changes})
    except JobUnreadable:
        return
    assert "/" not in job.user + job.node


@pytest.mark.report
@pytest.mark.parametrize("user", ["CORP\\alice", "alice smith", "alice@corp.example.com", "a+b", "élise"])
def test_names_of_directories_are_served(user: str) -> None:
    """Winbind and SSSD make such ones; nothing of ours has one as a part of a path but in an escaped form."""
    assert from_environment({**SLURM, "SLURM_JOB_USER": user}).user == user
