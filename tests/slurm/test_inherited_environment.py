"""Jobs inherit the environment of the node that started their step, and of the job that submitted them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.lib.accounts import ALICE
from tests.lib.site import Site

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


# Of a task: each variable whose value is a path of this installation or in the workspace, and what is there.
LOOK = """\
env | sort | while IFS='=' read -r name value; do
    case $name=$value in
    WARMSTART_OWN=*) ;;
    *=@BASE@/workspace/* | *=@BASE@/constant* | *=@RUN@/*) echo "$1 $name $value $(stat -c %d:%i:%U "$value" 2>&1)" ;;
    esac
done
made=$(mktemp) && echo "$1 mktemp $made $(basename "$TMPDIR")" || echo "$1 mktemp failed"
mkdir "$NUMBA_CACHE_DIR/of-$1"
ls -d "$TMPDIR"/of-* "$NUMBA_CACHE_DIR"/of-* 2>/dev/null
true
"""
FORWARD = """\
#!/bin/sh
cd "$HOME"
env -0 >forwarded
touch "$TMPDIR/of-batch"
srun {to} /bin/sh {look} own
# As hydra's proxy does, and whoever else takes the launching node's environment along.
srun --overlap {to} xargs -0 -a forwarded sh -c 'exec env -i "$@" /bin/sh {look} forwarded' sh
cd "$TMPDIR" && srun --overlap {to} pwd
"""


@pytest.mark.report
@pytest.mark.parametrize("way", ["one job", "components"])
def test_the_environment_of_one_node_leads_on_another_to_its_own(reader: Site, way: str) -> None:
    """Of a job's nodes, and of a heterogeneous job's: its tasks know the leader's id alone."""
    look = reader.cluster.base / "look.sh"
    look.write_text(LOOK.replace("@BASE@", str(reader.cluster.base)).replace("@RUN@", str(reader.runtime(""))))
    to = "--nodes=1 --ntasks=1 --nodelist=n4" if way == "one job" else "--het-group=1"
    nodes = ["--nodelist=n3,n4", "--nodes=2"] if way == "one job" else ["--nodelist=n3", ":", "--nodelist=n4"]
    script = FORWARD.format(to=to, look=look)
    asked = "--comment=warmstart fresh"  # there is a notice
    ended = reader.finish(reader.cluster.submit(script, ALICE, asked, *nodes))
    lines = ended.output.splitlines()

    def told(whose: str) -> dict[str, list[str]]:
        return {line.split()[1]: line.split()[2:] for line in lines if line.startswith(f"{whose} ")}

    own, forwarded = told("own"), told("forwarded")
    assert {"NUMBA_CACHE_DIR", "TMPDIR", "WARMSTART_CACHE", "WARMSTART_NOTICES"} <= own.keys(), ended.output
    assert {*forwarded} - {"mktemp"} == {*own} - {"mktemp"}, ended.output
    for name, found in own.items():
        assert name == "mktemp" or forwarded[name] == found, (name, ended.output)
        assert "failed" not in forwarded[name], ended.output
    seen = {line.rpartition("/")[2] for line in lines if "/of-" in line}
    assert seen == {"of-own", "of-forwarded"}, ended.output
    assert "couldn't chdir" not in ended.output
    assert lines[-1] == own["TMPDIR"][0], ended.output
