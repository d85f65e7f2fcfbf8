"""Jobs inherit the environment of the node that started their step, and of the job that submitted them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.cluster.accounts import ALICE
from tests.cluster.site import Site

RULES = """\
rules:
  - name: everyone
    profiles: [numba]
    env: {MINE: ours}
  - name: first-node
    match: {node: [n1]}
    env: {SITE_FABRIC: "mlx5_0, mlx5_1", SITE_FIRST: "1"}
  - name: second-node
    match: {node: [n2]}
    env: {SITE_FABRIC: "hfi1_0 x=y"}
  - name: another-partition
    match: {partition: [ci]}
    env: {SITE_FABRIC: ""}
"""
SAY = 'echo "$1 ${SITE_FABRIC-unset}/${SITE_FIRST-unset}/$MINE"'


@pytest.fixture(params=["task prolog", "plugin"])
def reader(request: pytest.FixtureRequest) -> Iterator[Site]:
    """Yield the site with rules for nodes, with the plugin or without."""
    site: Site = request.getfixturevalue("plugged" if request.param == "plugin" else "installed")
    site.write_policy(RULES, constant="spank" if request.param == "plugin" else "none")
    yield site
    site.write_policy()


@pytest.mark.report
def test_what_a_rule_has_set_is_replaced_by_what_another_sets(reader: Site) -> None:
    """On the other node of a job, and in a job that it submits; what the user has set since stays."""
    cluster = reader.cluster
    task = cluster.base / "say.sh"
    task.write_text(SAY)
    inner = f"sbatch --parsable --wait --output=inner.out {{}} --wrap='/bin/sh {task} inner'; cat inner.out"
    script = "\n".join(
        [
            "#!/bin/sh",
            f"/bin/sh {task} batch",
            f"srun --nodelist=n2 --nodes=1 --ntasks=1 /bin/sh {task} second",
            f"srun --nodelist=n1 --nodes=1 --ntasks=1 /bin/sh {task} first",
            f"SITE_FABRIC=own MINE=own srun --nodelist=n2 --nodes=1 --ntasks=1 /bin/sh {task} users",
            inner.format("--partition=ci --nodelist=n3"),
            inner.format('--nodelist=n3 --comment="warmstart: off"'),
        ]
    )
    ended = reader.finish(cluster.submit(script, ALICE, "--nodelist=n1,n2", "--ntasks-per-node=2"))
    told = [line for line in ended.output.splitlines() if "/" in line]
    assert told == [
        "batch mlx5_0, mlx5_1/1/ours",
        "second hfi1_0 x=y/1/ours",
        "first mlx5_0, mlx5_1/1/ours",
        "users own/1/own",
        "inner /unset/ours",
        "inner unset/unset/",
    ], ended.output
