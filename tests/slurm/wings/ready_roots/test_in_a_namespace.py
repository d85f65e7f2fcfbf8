"""The job's tree where each job has a mount namespace of Slurm's: by job_container/tmpfs, with and without `Shared`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.lib import config
from tests.lib.accounts import ALICE, BOB
from tests.lib.config import Namespace
from tests.lib.processes import wait_until
from tests.lib.registry import Registry, build_image
from tests.lib.site import Site

# A cluster for each. Slurm 22.05 has no `Shared` (job_container.conf(5)): newer releases are tried with it.
SHARING = [pytest.param("", marks=pytest.mark.sweep), *(["Shared=true"] if config.release() >= "24.11" else [])]
RULES = "rules: [{name: all, scope: user}]\n"
LOOK = """\
#!/bin/sh
echo "root $WARMSTART_ROOTFS $$"
cat "$WARMSTART_ROOTFS/etc/number"
stat -c %u:%g "$WARMSTART_ROOTFS/etc/number"
touch "$WARMSTART_ROOTFS/new" || echo read-only
"""
WAIT = "exec sleep 600\n"


@pytest.fixture(params=SHARING)
def shelved(request: pytest.FixtureRequest, contained: Callable[[Namespace], Site]) -> Iterator[Site]:
    """Yield a site with a shelf whose jobs each have a mount namespace."""
    site = contained(Namespace(further=request.param))
    (site.cluster.base / "shelf").mkdir()
    site.write_policy(RULES, workspace=f"{site.workspace}\n  shelf: {site.cluster.base}/shelf")
    yield site
    site.write_policy()


def test_the_tree_is_in_the_jobs_namespace_and_in_no_other_when_the_job_is_over(
    shelved: Site, registry: Registry
) -> None:
    """It is the job's own and read-only; a namespace of another job, which began with it, holds nothing of it."""
    site = shelved
    layout = build_image(site.cluster.base / "image", {"/etc/number": "one\n"})
    registry.push(layout, "latest", "test/contained:1")
    comment = f"--comment=warmstart: image={registry.url}/test/contained:1"

    def start(user: str) -> tuple[int, Path, int]:
        job = site.cluster.submit(LOOK + WAIT, user, "--nodelist=n1", comment)
        wait_until("the job", lambda: "read-only" in site.cluster.job(job).output, 90)
        account, lines = site.cluster.account(user), site.cluster.job(job).output.splitlines()
        (words,) = (line.split() for line in lines if line.startswith("root "))
        assert {"one", f"{account.uid}:{account.gid}"} < {*lines}
        return job, Path(words[1]), int(words[2])

    first, root, pid = start(ALICE)
    second, other, other_pid = start(BOB)
    assert str(root) in Path(f"/proc/{pid}/mountinfo").read_text()
    assert site.cluster.run(["ls", str(root)], BOB).returncode != 0
    site.cluster.cancel(first)
    table = Path(f"/proc/{other_pid}/mountinfo")
    wait_until("the epilog", lambda: str(root) not in table.read_text(), 60)
    assert str(other) in table.read_text()
    site.cluster.cancel(second)
    site.finish(second)
    assert not [tree for tree in (root, other) if tree.parent.name in Path("/proc/self/mountinfo").read_text()]
    assert site.leftovers() == []
