"""`warmstart prefetch`: what it says of itself."""

from __future__ import annotations

from pathlib import Path

from tests.lib.node import Node
from warmstart.policy import source


def test_a_prefetch_tells_that_the_policy_was_rejected(node: Node) -> None:
    """It works by the last good one, which may not name the images that the edit adds."""
    done = node.command("prefetch")
    assert (done.exit_code, done.stderr) == (0, "")
    file = Path(node.installation.policy)
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("")
    node.write(node.policy._replace(signature=source.signature(str(file))))
    file.write_text("registeries: []\n")
    refused = node.command("prefetch")
    assert (refused.exit_code, "registeries: unknown key" in refused.stderr) == (1, True)
