"""What containers say of themselves is counted when their job is over; what plan, reports and `explain` say of them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.lib.command_line import POLICY, answer, installed
from tests.lib.runs import events
from tests.lib.told import counts, parts
from warmstart import record as records
from warmstart.audit.line import Line
from warmstart.host.deadline import after
from warmstart.policy.current import current_policy
from warmstart.report.story import Part
from warmstart.steps.contract import Context
from warmstart.wings.ready_roots import end, told
from warmstart.wings.ready_roots.settings import OWN

TREE: Line = {"event": "root.shown", "image": "r/a:1", "way": "tree", "reason": ""}
NONE: Line = {**TREE, "way": "none", "reason": "not-unpacked"}
STARTED: Line = {"event": "containers.started", "tree": 3, "image": 1, "unpacked": 0}
SILENT: Line = {**STARTED, "tree": 0, "image": 0}
SHELF = POLICY.replace("paths: {", "paths: {shelf: /shelf, ")
IMAGE = ("--image", "reg.example.com/mine")


def ended(context: Context) -> list[tuple[int, int, int]]:
    """End the job; return what has been told of its containers."""
    end.job_over(context.paths, "n1", 7, context.audit, after(5))
    told = events(context, "containers.started") if os.path.isdir(context.paths.journal) else []
    return [(event["tree"], event["image"], event["unpacked"]) for event in told]


def test_containers_are_counted_by_their_way(context: Context, tmp_path: Path) -> None:
    """A name of another form is none. A job without ready roots, or with a link in their place, says nothing."""
    own = Path(context.record.run_directory, OWN)
    assert ended(context) == []
    records.save(context.paths.state, context.record)
    own.parent.mkdir(parents=True)
    assert ended(context) == []
    own.symlink_to(tmp_path)
    assert ended(context) == []
    own.unlink()
    own.mkdir()
    for name in ("from-tree.a", "from-tree.b", "from-image.c", "from-moon.d", "71.x"):
        (own / name).touch()
    assert ended(context) == [(2, 1, 0)]


def test_a_report_counts_them() -> None:
    assert counts(STARTED, STARTED, TREE, NONE) == {
        "containers started: tree": 6,
        "containers started: image": 2,
        "ready roots: tree": 1,
        "ready roots: none, not-unpacked": 1,
    }


def test_explain_says_what_containers_started_from_or_that_nobody_knows() -> None:
    text = "the job's containers: 3 from the node's tree, 1 from the image's file"
    assert Part("ready-root", "", text) in parts(STARTED)
    assert Part("ready-root", "", f"the job's containers: {told.NOT_KNOWN}") in parts(SILENT)


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
