"""What `warmstart plan` says of ready roots."""

from __future__ import annotations

from pathlib import Path

from tests.lib.command_line import POLICY, answer, installed

JOB = ("plan", "--user", "nobody")
IMAGE = ("--image", "reg.example.com/mine")


def said(tmp_path: Path, policy: str, *more: str) -> bool:
    """Return whether it says that containers start from a tree."""
    return any("the node's tree" in text for text in answer(installed(tmp_path, policy), *JOB, *more)["remarks"])


def test_a_job_with_an_image_is_told_of_the_tree(tmp_path: Path) -> None:
    """Where the policy has a shelf."""
    shelf = POLICY.replace("paths: {", "paths: {shelf: /shelf, ")
    assert shelf != POLICY
    assert said(tmp_path, shelf, *IMAGE)
    assert not said(tmp_path, shelf)
    assert not said(tmp_path, POLICY, *IMAGE)
