"""The policy's `slurmctld`, and rules on what only the controller knows."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.lib.policy_site import MINIMAL, Compile, Site, refusals
from warmstart.wings.specs import keys

CONTROLLER = "slurmctld: {spec_directory: /shared/specs}\n"


@pytest.mark.parametrize(
    ("text", "refusal"),
    [
        (
            "rules:\n  - {name: a, match: {job_name: x}}",
            "4:23: rules[0].match.job_name: needs slurmctld.spec_directory",
        ),
        ("slurmctld: {spec_directory: /shared/../specs}", "3:29: slurmctld.spec_directory: '/shared/../specs' is not"),
        ("slurmctld: {spec_directory: /shared/warmstart/x}", "3:29: slurmctld.spec_directory: may be neither in"),
        ("slurmctld: {spec_directory: /shared/specs, user: ghost}", "3:50: slurmctld.user: no account 'ghost'"),
        ("store_user: slurm", "3:13: store_user: 'slurm' is SlurmUser, who owns Slurm's state"),
    ],
)
def test_what_cannot_hold_is_refused(site: Site, text: str, refusal: str) -> None:
    (found,) = refusals(site, f"{MINIMAL}{text}\n")
    assert found.startswith(refusal)


def test_a_right_on_what_a_user_writes_is_refused(site: Site) -> None:
    rule = "{name: a, scope: site, match: {job_name: ci}}"
    problems = refusals(site, f"{MINIMAL}{CONTROLLER}rules:\n  - {rule}\n")
    assert [problem.split(": ")[1] for problem in problems] == ["rules[0].match.job_name"]


def test_the_compiled_policy_has_the_keys(compiled_of: Compile, tmp_path: Path) -> None:
    policy = compiled_of(f"{MINIMAL}{CONTROLLER}")
    assert keys.of(policy) == ("/shared/specs", ("slurm", 904, 904), 2, None)
    used = {known.name: (known.used, known.informs) for known in policy.wings}
    assert used["specs"] == (True, "specs.informs")
    assert keys.of(compiled_of(MINIMAL)) is None
    assert not any(known.used for known in compiled_of(MINIMAL).wings if known.name == "specs")
