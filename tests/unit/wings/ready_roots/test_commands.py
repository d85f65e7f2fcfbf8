"""What `warmstart plan` says of ready roots; where there is no shelf, the wing is not used."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.lib.command_line import POLICY, answer, installed
from warmstart.policy.current import current_policy

SHELF = POLICY.replace("paths: {", "paths: {shelf: /shelf, ")
IMAGE = ("--image", "reg.example.com/mine")


@pytest.mark.parametrize(
    ("policy", "image", "told"), [(SHELF, IMAGE, True), (SHELF, (), False), (POLICY, IMAGE, False)]
)
def test_a_job_with_an_image_is_told_of_the_tree(
    tmp_path: Path, policy: str, image: tuple[str, ...], told: bool
) -> None:
    site = installed(tmp_path, policy)
    remarks = answer(site, "plan", "--user", "nobody", *image)["remarks"]
    assert any("the node's tree" in text for text in remarks) is told
    (used,) = (known.used for known in current_policy(site, keep=False).policy.wings if known.name == "ready_roots")
    assert used is (policy == SHELF)
