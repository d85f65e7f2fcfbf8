"""One address and port for all nodes of a job, on real Slurm: never shared by live jobs or a foreign listener."""

from __future__ import annotations

import socket
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.lib.accounts import ALICE, BOB
from tests.lib.processes import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.lib.site import Site

LOW, HIGH = 20000, 20039
MEET = """\
rules:
  - name: meeting
    rendezvous: {{ports: {low}-{high}, per_user: 40, shared_nodes: {shared}, wait: {wait}, required: {required}}}
"""
SHOW = 'echo "$SLURM_PROCID $MASTER_ADDR:$MASTER_PORT $WARMSTART_PORTS"'
# The head's batch step takes the port as a launcher does. Nothing of an earlier job may hold it.
BIND = """\
#!/bin/sh
exec /usr/bin/python3 -IS -c 'import os, socket, time
with socket.create_server(("", int(os.environ["MASTER_PORT"]))):
    time.sleep(0.3)'
"""
SLEEP = '#!/bin/sh\necho "$MASTER_ADDR:$MASTER_PORT"\nexec sleep 600\n'


def allow(site: Site, **changes: object) -> None:
    fields = {"low": LOW, "high": HIGH, "shared": "true", "wait": "20s", "required": "false", **changes}
    site.write_policy(rules=MEET.format(**fields))


@pytest.fixture
def meeting(site: Site) -> Iterator[Site]:
    """Yield the site with such a policy. Afterwards nothing is reserved or announced."""
    allow(site)
    yield site
    site.cluster.wait_idle()
    assert (reserved(site), announced(site)) == ([], [])


def reserved(site: Site) -> list[str]:
    return names(site.runtime("n1").parent / "ports")


def announced(site: Site) -> list[str]:
    return sorted(path.parent.name for path in (site.store / "runs").glob("*/rendezvous.*.answer"))


def names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir()) if directory.is_dir() else []


def lines(output: str) -> list[str]:
    return sorted(line.partition(" ")[2] for line in output.splitlines() if line[:1].isdigit())


def told(site: Site, job: int = 0) -> list[tuple[int, str, list[int]]]:
    """Return (job, node, ports) of each node that gave its job ports, the head node among them."""
    return [(found["job_id"], found["node"], found["ports"]) for found in site.told("rendezvous", job)]


def test_all_tasks_of_a_job_see_the_same(meeting: Site) -> None:
    """Those of salloc, too, which has no batch script."""
    script = f"#!/bin/sh\n{SHOW}\nsrun --ntasks-per-node=2 sh -c '{SHOW}'\n"
    job = meeting.cluster.wait(
        meeting.cluster.submit(script, ALICE, "--nodes=3", "--ntasks-per-node=2", "--comment=warmstart: ports=2")
    )
    assert job.state == "COMPLETED"
    found = told(meeting, job.job_id)
    first, *further = found[0][2]
    assert sorted(found) == [(job.job_id, node, [first, *further]) for node in job.nodes]
    assert lines(job.output) == [f"{job.nodes[0]}:{first} {','.join(map(str, further))}"] * 7
    done = meeting.cluster.run(["salloc", "--quiet", "--nodes=2", "srun", "sh", "-c", SHOW], BOB)
    one, other = lines(done.stdout)
    assert one == other
    assert LOW <= int(one.rpartition(":")[2]) <= HIGH


def test_components_of_a_heterogeneous_job_meet_at_the_leader(meeting: Site) -> None:
    """One address and port for both components, released by the leader's epilog."""
    components = "#SBATCH --nodelist=n1\n#SBATCH hetjob\n#SBATCH --nodelist=n3,n4\n"
    script = f"#!/bin/sh\n{components}srun --het-group=0,1 sh -c '{SHOW}'\n"
    job_id = meeting.cluster.submit(script, ALICE)
    meeting.cluster.wait_empty()
    output = (meeting.cluster.account(ALICE).home / f"slurm-{job_id}.out").read_text()
    ((_, _, ports),) = told(meeting, job_id)
    assert lines(output) == [f"n1:{ports[0]} "] * 3
    assert sorted(node for _, node, _ in told(meeting, job_id + 1)) == ["n3", "n4"]


@pytest.fixture
def foreign() -> Iterator[set[int]]:
    """Yield ports of the range on which other programs of this host listen."""
    with ExitStack() as stack:
        listening = range(LOW, HIGH + 1, 4)
        for port in listening:
            stack.enter_context(socket.create_server(("127.0.0.1", port)))
        yield set(listening)


def overlap(site: Site, count: int) -> int:
    """Run that many overlapping 2-node jobs. Return the number of failures."""
    # One head node: those of this cluster share a network, and as different hosts would, no /run.
    options = ("--nodelist=n1,n2", "--nodes=2", "--ntasks=2", f"--array=1-{count}", "--time=5")
    array = site.cluster.submit(BIND, ALICE, *options)
    site.cluster.wait_empty(5.0 * count)
    states = site.cluster.admin("scontrol", "show", "job", str(array))
    return count - states.count("JobState=COMPLETED")


def collisions(site: Site, nodes: dict[tuple[int, str], list[int]]) -> list[tuple[int, int]]:
    """Return (port, job) of every port that a job had while another surely held it.

    A job surely holds the ports of its first node between the last line of its prolog and the first one of its epilog.
    """
    held: dict[int, list[tuple[str, str, int]]] = {}
    for line in site.results(hook="prolog"):
        if line.get("head") and (ports := nodes.get((line["job_id"], line["node"]))):
            until = min(end["ts"] for end in site.events(line["job_id"], "hook.started") if end["hook"] == "epilog")
            for port in ports:
                held.setdefault(port, []).append((line["ts"], until, line["job_id"]))
    return [
        (port, after[2])
        for port, holders in held.items()
        for before, after in pairwise(sorted(holders))
        if after[0] < before[1]
    ]


@pytest.mark.threat(18)
@pytest.mark.parametrize("count", [24, pytest.param(200, marks=pytest.mark.sweep)])
def test_no_port_is_two_live_jobs_nor_a_foreign_listeners(meeting: Site, foreign: set[int], count: int) -> None:
    known = {job for job, _, _ in told(meeting)}
    assert overlap(meeting, count) == 0
    given = {(job, node): ports for job, node, ports in told(meeting) if job not in known}
    by_job = {job: ports for (job, _), ports in given.items()}
    assert (len(given), len(by_job)) == (2 * count, count)
    assert all(ports == by_job[job] for (job, _), ports in given.items())
    assert not {port for ports in by_job.values() for port in ports} & foreign
    assert collisions(meeting, given) == []


def test_a_requeued_job_meets_at_another_port(meeting: Site) -> None:
    cluster = meeting.cluster
    job_id = cluster.submit(SLEEP, ALICE, "--nodes=2", "--requeue", "--open-mode=append")
    wait_until("the first run", lambda: cluster.job(job_id).output.count("\n") == 1, 60)
    cluster.requeue(job_id)
    cluster.wait_for(job_id, {"PENDING"})
    cluster.wait_idle()
    assert (reserved(meeting), announced(meeting)) == ([], [])
    # Not within the second of the requeue: slurmd refuses credentials as old as the revocation.
    cluster.admin("scontrol", "update", f"jobid={job_id}", "starttime=now+2")
    wait_until("the second run", lambda: cluster.job(job_id).output.count("n1:2") == 2, 60)
    assert announced(meeting) == [f"warmstart.{job_id}.1"]
    cluster.cancel(job_id)
    cluster.wait(job_id)
    cluster.wait_idle()
    given = [ports for _, _, ports in told(meeting, job_id)]
    assert ({given.count(ports) for ports in given}, len(given)) == ({2}, 4)
    assert reserved(meeting) == []


def test_components_of_a_job_never_share_a_node(meeting: Site) -> None:
    """Otherwise their tasks, which know only the leader's id, would find one view for two records."""
    refused = meeting.cluster.run(["sbatch", "--nodelist=n2", "--wrap=true", ":", "--nodelist=n2"], ALICE, stdin="")
    assert "Invalid node name" in refused.stderr
    job_id = meeting.cluster.submit("#!/bin/sh\nexec sleep 600\n", ALICE, "--ntasks=1", ":", "--ntasks=1")
    wait_until("both components", lambda: len(meeting.events(job_id + 1, "hook.finished")) == 1, 60)
    nodes = [{event["node"] for event in meeting.events(job_id + n, "hook.started")} for n in (0, 1)]
    meeting.cluster.cancel(job_id)
    assert [len(names) for names in nodes] == [1, 1]
    assert nodes[0] != nodes[1]


@pytest.mark.threat(18)
@pytest.mark.parametrize("required", ["true", "false"])
def test_a_shared_head_node_has_no_port(meeting: Site, required: str) -> None:
    allow(meeting, shared="false", required=required)
    script = f"#!/bin/sh\nSLURM_PROCID=0\n{SHOW}\n"
    options = ("--nodes=2", "--ntasks-per-node=1", "--cpus-per-task=1")
    alone = meeting.cluster.wait(meeting.cluster.submit(script, ALICE, *options, "--exclusive"))
    assert alone.state == "COMPLETED"
    assert lines(alone.output)[0].startswith(f"{alone.nodes[0]}:")
    job = meeting.cluster.wait(meeting.cluster.submit(script, ALICE, *options))
    assert job.state == ("FAILED" if required == "true" else "COMPLETED")
    assert "does not have its first node" in job.output
    assert lines(job.output) == ([] if required == "true" else [": "])
