"""What containers say of themselves is counted when their job is over; what plan says of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.lib.command_line import POLICY, answer, installed
from tests.lib.runs import result
from warmstart.policy.current import current_policy
from warmstart.run import state as runs
from warmstart.steps.contract import Context
from warmstart.wings.ready_roots import end
from warmstart.wings.ready_roots.settings import NAME, OWN

SHELF = POLICY.replace("paths: {", "paths: {shelf: /shelf, ")
IMAGE = ("--image", "reg.example.com/mine")


def ended(context: Context) -> dict[str, str]:
    """End the job; return what is told of its containers."""
    end.job_over(context.paths, 7, context.audit)
    told: dict[str, str] = result(context).get("told", {}).get(NAME, {})
    return told


def test_containers_are_counted_by_their_way(context: Context, tmp_path: Path) -> None:
    """A name of another form is none. A job without ready roots, or with a link in their place, says nothing."""
    own = Path(context.run.directory, OWN)
    assert ended(context) == {}
    runs.save(context.paths.state, context.run)
    own.parent.mkdir(parents=True)
    assert ended(context) == {}
    own.symlink_to(tmp_path)
    assert ended(context) == {}
    own.unlink()
    own.mkdir()
    assert ended(context) == {"the job's containers": end.NOT_KNOWN}
    for name in ("from-tree.a", "from-tree.b", "from-image.c", "from-moon.d", "71.x"):
        (own / name).touch()
    assert ended(context) == {"the job's containers": "2 from the node's tree, 1 from the image's file"}


@pytest.mark.parametrize(
    ("policy", "image", "said"), [(SHELF, IMAGE, True), (SHELF, (), False), (POLICY, IMAGE, False)]
)
def test_a_plan_tells_a_job_with_an_image_of_the_tree(
    tmp_path: Path, policy: str, image: tuple[str, ...], said: bool
) -> None:
    """Where the policy has a shelf; elsewhere the wing is not used."""
    site = installed(tmp_path, policy)
    remarks = answer(site, "plan", "--user", "nobody", *image)["remarks"]
    assert any("the node's tree" in text for text in remarks) is said
    (used,) = (known.used for known in current_policy(site).policy.wings if known.name == "ready_roots")
    assert used is (policy == SHELF)
