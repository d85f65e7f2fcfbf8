"""`warmstart prefetch`: what it says of itself."""

from __future__ import annotations

from pathlib import Path

from tests.lib.entry_site import EntrySite
from warmstart.policy import source


def test_a_prefetch_tells_that_the_policy_was_rejected(entry_site: EntrySite) -> None:
    """It works by the last good one, which may not name the images that the edit adds."""
    done = entry_site.command("prefetch")
    assert (done.exit_code, done.stderr) == (0, "")
    file = Path(entry_site.installation.policy)
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("")
    entry_site.write(entry_site.policy._replace(signature=source.signature(str(file))))
    file.write_text("registeries: []\n")
    refused = entry_site.command("prefetch")
    assert (refused.exit_code, "registeries: unknown key" in refused.stderr) == (1, True)
