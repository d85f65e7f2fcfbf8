"""A private image that only a step names."""

from __future__ import annotations

import pytest

from tests.lib.accounts import ALICE, BOB
from tests.lib.site import Site
from tests.lib.wings.step_images.steps import naming, served
from tests.slurm.test_private_images import Shared

pytestmark = pytest.mark.threat(10)


def test_a_step_that_names_one_has_it_if_it_is_bound_to_its_user(team: Site, store: Shared, private: str) -> None:
    """Root copies it into the job of alice's step. Bob's step imports as bob, whom the registry does not know."""
    image = f"{private}/team/secret:1"
    with served(team):
        jobs = [
            team.cluster.submit(naming(team, image, then="&& head -c4 $path"), user, "--nodelist=n1")
            for user in (ALICE, BOB)
        ]
        own, others = (team.finish(job) for job in jobs)
    *_, path, magic = own.output.splitlines()
    assert (own.state, magic) == ("COMPLETED", "hsqs"), own
    assert path.startswith(f"{team.workspace}/{own.job_id}.")
    assert others.state == "FAILED"
    assert "importing it for you alone" not in others.output, others
    assert list((store.source / "images").glob("*.sqsh")) == []
