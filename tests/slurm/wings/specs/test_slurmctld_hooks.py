"""prolog-slurmctld and epilog-slurmctld under a real slurmctld, as SlurmUser; and forged specs.

Slurm 22.05 without slurmdbd has no QOS: a stand-in for squeue tells one. Everything else is Slurm's own.
"""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from tests.lib.accounts import ALICE, BOB, Account, lookup
from tests.lib.processes import wait_until
from tests.lib.site import Site

RULES = """\
slurmctld: {{spec_directory: {specs}, deadline: {deadline}, conf: {conf}}}
rules:
  - {{name: all, profiles: [numba]}}
  - {{name: named, match: {{job_name: "night*"}}, env: {{NAMED: "yes"}}}}
{more}
"""
QOS = '  - {name: qos, match: {qos: high}, env: {QOS: "high"}}'
JOB_IDS = count(900_000)
SHOW = '#!/bin/sh\necho "named=$NAMED qos=$QOS"\n'
# The tests' cluster has no accounting, so its slurmctld can enforce nothing.
ENFORCES = """\
[ "$*" != "show config" ] || { echo "AccountingStorageEnforce = associations,limits,qos"; exit; }
exec /usr/bin/scontrol "$@"
"""
TELLS = """\
echo "$*" >>{asked}
/usr/bin/squeue "$@" | sed 's/|(null)|/|high|/'
"""


class Hooks:
    """The site with both hooks enabled, and their files on the controller."""

    def __init__(self, site: Site) -> None:
        self.site = site
        self.slurm: Account = lookup("slurm", site.cluster.base)
        self.specs = self._own(site.cluster.base / "specs", 0o755)
        self.own = self._own(site.var.with_name(f"{site.var.name}-slurmctld"), 0o700)
        self.programs = site.cluster.base / "slurm-bin"  # of Slurm, with our stand-ins
        self.programs.mkdir()
        self.asked = self._own(site.cluster.base / "asked", 0o755) / "log"

    def write_policy(self, more: str = "", deadline: str = "20s", script: str = TELLS) -> None:
        """Write a policy. `script` is the stand-in for squeue."""
        conf = self.site.cluster.environment["SLURM_CONF"]
        for name, text in (("scontrol", ENFORCES), ("squeue", script.format(asked=self.asked))):
            (self.programs / name).write_text(f"#!/bin/sh\n{text}")
            (self.programs / name).chmod(0o755)
        rules = RULES.format(specs=self.specs, deadline=deadline, conf=conf, more=more)
        self.site.write_policy(rules)
        policy = self.site.etc / "policy.yaml"
        policy.write_text(
            policy.read_text().replace("\npaths:\n", f"\npaths:\n  scontrol: {self.programs}/scontrol\n", 1)
        )

    def run(self, *arguments: str, script: str = SHOW, user: str = ALICE) -> str:
        """Run a job until epilog-slurmctld has ended. Return its output."""
        ended = self.site.finish(self.site.cluster.submit(script, user, *arguments))
        assert (ended.state, ended.restarts) == ("COMPLETED", 0), ended
        wait_until("epilog-slurmctld", lambda: os.listdir(self.specs) == [], 30)
        return ended.output

    def audit(self, event: str) -> list[dict[str, Any]]:
        """Return events of the controller's own log, in order."""
        log = self.own / "audit.jsonl"
        lines = log.read_text().splitlines() if log.exists() else []
        return [line for line in map(json.loads, lines) if line["event"] == event]

    def failures(self) -> list[dict[str, Any]]:
        """Return the failures of hooks, in order."""
        return [failure for line in self.audit("hook.finished") for failure in line.get("failures", ())]

    def written(self) -> list[dict[str, Any]]:
        """Return the last lines of hooks that have written a spec."""
        return [line for line in self.audit("hook.finished") if "spec" in line]

    def _own(self, directory: Path, mode: int) -> Path:
        directory.mkdir(exist_ok=True)
        directory.chmod(mode)
        os.chown(directory, self.slurm.uid, self.slurm.gid)
        return directory


@pytest.fixture(scope="module")
def switched_on(installed: Site) -> Iterator[Hooks]:
    """Uncomment the two lines of the include file (docs/wings/specs.md); restore it at the end."""
    conf = installed.cluster.base / "etc" / "warmstart.conf"
    text = conf.read_text()
    conf.write_text(re.sub(r"^#((Prolog|Epilog)Slurmctld=)", r"\1", text, flags=re.MULTILINE))
    assert conf.read_text() != text
    installed.cluster.restart_slurmctld()
    yield Hooks(installed)
    installed.write_policy()
    conf.write_text(text)
    installed.cluster.restart_slurmctld()


@pytest.fixture
def hooks(site: Site, switched_on: Hooks) -> Hooks:
    """Return the site with the hooks under their usual policy."""
    switched_on.write_policy()
    return switched_on


def test_rules_see_what_only_the_controller_knows(hooks: Hooks) -> None:
    """A job name with a blank; no look-up, because no rule needs one."""
    show_spec = f"{SHOW}cat {hooks.specs}/*.json\n"
    lines = hooks.run("--job-name=nightly build", script=show_spec).splitlines()
    assert lines[0] == "named=yes qos="
    spec = json.loads(lines[1])
    alice = hooks.site.cluster.account(ALICE)
    assert (spec["job_name"], spec["uid"], spec["cluster"]) == ("nightly build", alice.uid, "warmstart")
    assert hooks.run("--job-name=daily") == "named= qos=\n"
    assert not hooks.asked.exists()
    assert [line["uid"] for line in hooks.written()[-2:]] == [alice.uid] * 2
    assert not hooks.failures()


def test_each_task_of_an_array_and_each_component_has_its_own_spec(hooks: Hooks) -> None:
    """Each is looked up once."""
    hooks.write_policy(QOS)
    home = hooks.site.cluster.account(BOB).home
    script = f"{SHOW}sleep 1\n"
    array = hooks.site.cluster.submit(script, BOB, "--array=0-2", f"--output={home}/spec-%a.out")
    files = [home / f"spec-{number}.out" for number in range(3)]
    wait_until("the array", lambda: all(file.is_file() and file.read_text() for file in files), 60)
    assert {file.read_text() for file in files} == {"named= qos=high\n"}
    hooks.site.cluster.wait_idle()
    leader = hooks.site.cluster.submit(SHOW, ALICE, "--nodelist=n1", ":", "--nodelist=n2")
    assert hooks.site.finish(leader).output == "named= qos=high\n"
    assert [hooks.site.failures(job_id) for job_id in (leader, leader + 1)] == [[], []]
    wait_until("epilog-slurmctld", lambda: os.listdir(hooks.specs) == [], 30)
    asked = hooks.asked.read_text().splitlines()
    job_ids = [*range(array, array + 3), leader, leader + 1]
    assert [sum(f"--jobs={job_id} " in line for line in asked) for job_id in job_ids] == [1] * 5
    written = hooks.written()[-5:]
    assert {line["qos"] for line in written} == {"squeue"}


def test_a_users_own_text_is_no_qos(hooks: Hooks) -> None:
    """Nothing that a user writes is in the answer, not even with the separator of its fields."""
    hooks.write_policy(QOS, script='echo "$*" >>{asked}; exec /usr/bin/squeue "$@"\n')
    assert hooks.run("--job-name=nightly|RUNNING|high|") == "named=yes qos=\n"
    assert not hooks.failures()


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        pytest.param("exec sleep 600\n", "was killed at its deadline", marks=pytest.mark.real_time),
        ("echo 'slurm_load_jobs error: Unable to contact slurm controller' >&2; exit 1\n", "Unable to contact"),
    ],
)
def test_a_controller_that_does_not_answer_costs_the_qos_alone(hooks: Hooks, script: str, reason: str) -> None:
    """The job starts at the deadline, once, with everything else."""
    hooks.write_policy(QOS, deadline="1s", script=script)
    assert hooks.run("--job-name=nightly") == "named=yes qos=\n"
    assert reason in hooks.failures()[-1]["reason"]


def test_a_hook_that_is_killed_leaves_a_whole_spec(hooks: Hooks) -> None:
    """Slurm treats death by a signal as success: the job starts, and finds the spec written before."""
    hooks.write_policy(QOS, script="kill -9 $PPID\n")
    assert hooks.run("--job-name=nightly") == "named=yes qos=\n"


def test_a_hook_that_can_write_nothing_holds_no_job_up(hooks: Hooks) -> None:
    """Without a directory for specs the job runs without them, once, and both audits have the reason."""
    hooks.specs.chmod(0o777)
    try:
        ended = hooks.site.finish(hooks.site.cluster.submit(SHOW, ALICE, "--job-name=nightly"))
    finally:
        hooks.specs.chmod(0o755)
    assert (ended.state, ended.restarts, ended.output) == ("COMPLETED", 0, "named= qos=\n")
    (ignored,) = hooks.site.failures(ended.job_id)
    assert "can be written by others" in ignored["reason"]
    assert "can be written by others" in hooks.failures()[-1]["reason"]


# --- specs that nobody should believe, by hand: slurmctld writes no such ones

SPEC = {"format": 1, "cluster": "c1", "restarts": 1, "array": "", "comment": "", "qos": "high", "job_name": "nightly"}


def forged(hooks: Hooks, number: int, changes: dict[str, object]) -> Path:
    """Write a spec as slurmctld's hook does, except for `changes`."""
    uid = hooks.site.cluster.account(ALICE).uid
    path = hooks.specs / f"c1.{number}.json"
    path.write_text(json.dumps({**SPEC, "job_id": number, "uid": uid, "written": time.time(), **changes}))
    os.chown(path, hooks.slurm.uid, hooks.slurm.gid)
    path.chmod(0o644)
    return path


def linked(path: Path) -> None:
    """Put a link to the spec in its place."""
    path.rename(path.with_suffix(".real"))
    path.symlink_to(path.with_suffix(".real").name)


FORGED: list[tuple[dict[str, object], Callable[[Path], None] | None, str]] = [
    ({}, None, ""),
    ({}, lambda path: os.chown(path, 64201, 64201), "belongs to uid 64201, not to slurmctld.user"),
    ({}, lambda path: os.chown(path, 0, 0), "belongs to uid 0, not to slurmctld.user"),
    ({}, linked, "symbolic links"),
    ({}, lambda path: os.link(path, path.with_suffix(".real")), "has 2 links"),
    ({}, lambda path: path.unlink(), "No such file"),
    ({"job_id": 999}, None, "is of job 999"),
    ({"uid": 64202}, None, "of uid 64202"),
    ({"restarts": 0}, None, "is of run 0 of the job, and this is run 1"),
    ({"written": 1700000000}, None, "was written"),
]


@pytest.mark.threat(14)
def test_a_forged_or_replayed_spec_grants_nothing(hooks: Hooks) -> None:
    """Another owner's, a link, another job's, an older run's: ignored and audited. The good one is used."""
    hooks.write_policy(QOS)  # one for all: it is compiled once
    for changes, spoil, reason in FORGED:
        environment, ignored = prolog_of(hooks, changes, spoil)
        assert ("QOS=high" in environment, "NAMED=yes" in environment) == (not reason, not reason), reason
        assert [reason in found for found in ignored] == ([True] if reason else []), (reason, ignored)


def prolog_of(hooks: Hooks, changes: dict[str, object], spoil: Callable[[Path], None] | None) -> tuple[str, list[str]]:
    """Run the hooks of a job whose spec is forged. Return its view and why its spec was ignored."""
    site, job_id = hooks.site, next(JOB_IDS)
    variables = site.variables(job_id, SLURM_CLUSTER_NAME="c1", SLURM_JOB_RESTART_COUNT="1")
    path = forged(hooks, job_id, changes)
    try:
        if spoil:
            spoil(path)
        assert site.run_hook("prolog", variables).returncode == 0
        environment = (site.view("n1", job_id) / "environment").read_text()
        return environment, [failure["reason"] for failure in site.failures(job_id)]
    finally:
        for left in hooks.specs.iterdir():
            left.unlink()
        site.run_hook("epilog", variables)
