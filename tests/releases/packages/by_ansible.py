"""The Ansible role in a root file system of `tests/releases/packages/fresh`. Run there by `test_deb`.

WARMSTART_PACKAGES names the directory with the package.
"""

from __future__ import annotations

import json
import os
import pwd
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.lib.accounts import ALICE, IMPORT, STORE, VALIDATE
from tests.lib.cluster import Cluster
from tests.lib.site import POLICY, RULES, Site, result

PACKAGES = Path(os.environ.get("WARMSTART_PACKAGES", "/nonexistent"))
PLAYBOOK = Path(__file__).resolve().parents[3] / "packaging" / "ansible" / "site.yml"
CHANGED = re.compile(r"changed=(\d+) .*failed=(\d+)")


@pytest.fixture
def cluster(capable_host: None) -> Iterator[Cluster]:
    with Cluster(Path("/usr")) as running:
        conf = running.base / "etc" / "slurm.conf"
        conf.write_text(conf.read_text().replace("include warmstart.conf\n", ""))
        (conf.parent / "warmstart.conf").unlink()
        running.restart_slurmctld()
        yield running


def play(cluster: Cluster, policy: Path) -> tuple[int, int]:
    """Run the playbook on this host; return how many tasks changed something, and how many failed."""
    uids = {name: cluster.account(name).uid for name in (STORE, IMPORT, VALIDATE)}
    variables = {
        "warmstart_package": str(next(PACKAGES.glob("warmstart_*.deb"))),
        "warmstart_policy": str(policy),
        "warmstart_slurm_directory": str(cluster.base / "etc"),
        "warmstart_uids": uids,
    }
    (policy.parent / "variables.json").write_text(json.dumps(variables))
    done = subprocess.run(
        ["ansible-playbook", "-i", "localhost,", "-c", "local", "-e", f"@{policy.parent}/variables.json", PLAYBOOK],
        check=False, capture_output=True, text=True, env={**os.environ, **cluster.environment, "LC_ALL": "C.UTF-8"},
    )  # fmt: skip
    found = CHANGED.search(done.stdout)
    assert found is not None, done.stdout + done.stderr
    assert found[2] == "0", done.stdout + done.stderr
    return int(found[1]), done.stdout.count("Restart slurmctld, then every slurmd.")


def test_from_a_bare_node_to_a_warm_job(cluster: Cluster, tmp_path: Path) -> None:
    """The accounts, the package, the policy, Slurm's settings, and doctor is content. A second run changes nothing."""
    base = cluster.base
    places = {"workspace": base / "workspace", "store": base / "store", "cache": base / "constant"}
    policy = tmp_path / "policy.yaml"
    policy.write_text(POLICY.format(base=base, registry="registry.invalid", constant="none", rules=RULES, **places))
    owner, validator = cluster.account(STORE), cluster.account(VALIDATE)
    places["store"].mkdir()
    os.chown(places["store"], owner.uid, owner.gid)
    subprocess.run(["userdel", VALIDATE], check=True)
    changed, told = play(cluster, policy)
    assert (changed > 3, told) == (True, 1)
    assert pwd.getpwnam(VALIDATE).pw_uid == validator.uid
    assert play(cluster, policy) == (0, 0)
    cluster.restart_slurmctld()
    for node in cluster.nodes:
        cluster.kill_slurmd(node)
        cluster.start_slurmd(node)
    site = Site(cluster, install=lambda _: None)
    ended = [site.finish(site.compile_job("numba", ALICE, node)) for node in ("n1", "n2")]
    assert [job.state for job in ended] == ["COMPLETED", "COMPLETED"]
    assert result(ended[1].output)["cache_hits"] > 0
