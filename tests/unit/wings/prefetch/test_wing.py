"""The wing's policy and its unit."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.lib.policy_site import MINIMAL, Compile, Site
from warmstart import wing
from warmstart.policy.invalid import PolicyInvalid

UNITS = Path(wing.FOLDER, "prefetch", "systemd")


def test_a_prefetch_starts_the_command() -> None:
    """Its imports are units of their own, so it ends at once."""
    unit = (UNITS / "warmstart-prefetch.service").read_text()
    assert re.findall(r"^ExecStart=(.*)$", unit, re.MULTILINE) == ["@PREFIX@/bin/warmstart prefetch"]
    assert (UNITS / "warmstart-prefetch.timer").exists()


def test_images_of_other_registries_are_refused(site: Site) -> None:
    site.write(f"{MINIMAL}prefetch: {{images: [docker://a.org/b]}}\n")
    with pytest.raises(
        PolicyInvalid, match=r"3:21: prefetch\.images\[0\]: registry a\.org is not in images\.registries"
    ):
        site.compiled()


def test_the_compiled_policy_has_them(compiled_of: Compile) -> None:
    used = compiled_of(f"{MINIMAL}images: {{registries: [a.org]}}\nprefetch: {{images: [docker://a.org/b]}}\n")
    assert used.own == {"prefetch": ["docker://a.org/b"]}
    assert [known.used for known in used.wings if known.name == "prefetch"] == [True]
    assert [known.used for known in compiled_of(MINIMAL).wings if known.name == "prefetch"] == [False]
