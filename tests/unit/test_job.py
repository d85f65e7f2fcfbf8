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


def test_nothing_but_slurms_own_variables_is_needed() -> None:
    job = from_environment({**SLURM, "SLURM_JOB_ACCOUNT": "(null)", "SLURM_NODELIST": "n[1-2]"})
    assert (job.id, job.user, job.account, job.nodelist, job.view_id) == (7, "a", "", "n[1-2]", 7)


def test_tasks_of_a_heterogeneous_job_know_the_leaders_id() -> None:
    assert from_environment({**SLURM, "SLURM_JOB_ID": "8", "SLURM_HET_JOB_ID": "7"}).view_id == 7


def test_what_tells_runs_and_shared_nodes_apart() -> None:
    told = {"SLURM_JOB_RESTART_COUNT": "2", "SLURM_JOB_CPUS_PER_NODE": "4(x2),2"}
    shared = {"SLURM_JOB_OVERSUBSCRIBE": "NO", "SLURM_JOB_EXCLUSIVE": "NODE"}
    job = from_environment({**SLURM, **told, **shared})
    assert (job.cpus_per_node, job.oversubscribe, job.exclusive) == ("4(x2),2", "NO", "NODE")
    assert [job.restarts, from_environment(SLURM).restarts] == [2, 0]


def test_the_plugins_options_are_taken_as_they_come() -> None:
    job = from_environment({**SLURM, "SPANK_WARM_IMAGE": "a:1", "SPANK_WARM_PROFILE": "numba", "SPANK_NO_WARM": "1"})
    assert (job.warm_image, job.warm_profile, job.no_warm) == ("a:1", "numba", True)
    plain = from_environment(SLURM)
    assert (plain.warm_image, plain.warm_profile, plain.no_warm) == ("", "", False)


def test_what_slurmd_does_not_tell_is_not_known() -> None:
    job = from_environment(SLURM)
    assert (job.qos, job.job_name, job.array, job.comment_known) == (None, None, None, False)
    job = from_environment({**SLURM, "SLURM_JOB_QOS": "(null)", "SLURM_JOB_RESTART_COUNT": "0"})
    assert (job.qos, job.comment_known) == ("", True)


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
