"""The policy's `launchers`: a directory that is not warmstart's own."""

from __future__ import annotations

import re

import pytest

from tests.lib.policy_site import MINIMAL, Compile, Site
from warmstart.policy.invalid import PolicyInvalid


@pytest.mark.parametrize(
    ("text", "refusal"),
    [
        ("{lock: true}", "3:19: launchers.lock: needs launchers.directory, where the locks are"),
        ("{directory: /shared}", "3:24: launchers.directory: may not be in paths.store (/shared/warmstart) or contain"),
        ("{directory: /a//b}", "3:24: launchers.directory: write /a/b"),
    ],
)
def test_what_cannot_hold_is_refused(site: Site, text: str, refusal: str) -> None:
    site.write(f"{MINIMAL}launchers: {text}\n")
    with pytest.raises(PolicyInvalid, match=re.escape(refusal)):
        site.compiled()


@pytest.mark.parametrize(
    ("text", "used"),
    [("", False), ("launchers: {}\n", False), ("launchers: {directory: /images}\n", True)],
)
def test_it_is_used_where_a_directory_is_named(compiled_of: Compile, text: str, used: bool) -> None:
    policy = compiled_of(f"{MINIMAL}{text}")
    assert [known.used for known in policy.wings if known.name == "launchers"] == [used]
