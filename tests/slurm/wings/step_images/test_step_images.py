"""An image that only a step names: one import for all who name it, waited for as in a prolog; and caches that fit it.

The importer is called in real steps, as pyxis calls it; with the real pyxis `tools/real` does.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.lib.accounts import ALICE, BOB, CAROL
from tests.lib.processes import wait_until
from tests.lib.registry import Registry, layers
from tests.lib.site import Site
from tests.lib.wings.step_images.steps import answering, importer, naming


def ended(site: Site) -> Counter[str]:
    """Return how often processes that answer steps came to which end."""
    return Counter(line["outcome"] for line in site.results(hook="step-images"))


def begun(site: Site) -> int:
    """Return how many processes that answer steps have written their first line."""
    return sum(line["hook"] == "step-images" for line in site.audit("--event", "hook.started"))


def image_path(output: str) -> str:
    """Return the path that a step printed, which is the last line."""
    return output.splitlines()[-1].strip()


def test_six_steps_of_three_users_import_a_cold_image_once(
    asked: Site, registry: Registry, fresh_image: Callable[[], str]
) -> None:
    """Each blob comes once, into the store; all six get the same file, and nobody but the store has one."""
    site, image = asked, fresh_image()
    name = image.partition("/")[2].partition(":")[0]
    jobs = [
        site.cluster.submit(naming(site, image), user, f"--nodelist=n{number}")
        for number, user in enumerate((ALICE, BOB, CAROL) * 2, 1)
        for number in [1 + number % 4]
    ]
    ended = [site.finish(job) for job in jobs]
    assert [job.state for job in ended] == ["COMPLETED"] * 6, [job.output for job in ended]
    paths = {image_path(job.output) for job in ended}
    assert {Path(path).parent for path in paths} == {site.store / "images"}, paths
    assert len(paths) == 1
    assert [registry.requests("GET", f"/{name}/blobs/{digest}") for digest in layers(image)] == [1]
    (imported,) = [event for event in site.audit("--event", "image.imported") if event["image"] == image]
    assert imported["hook"] == "import"
    served = [found for job in jobs for found in site.images(job)]
    assert {(found["hook"], found["how"]) for found in served} <= {("step-images", how) for how in ("waited", "reused")}


@pytest.mark.real_time
def test_a_step_waits_longer_than_a_prolog_may(asked: Site, registry: Registry, fresh_image: Callable[[], str]) -> None:
    """The wait of a prolog is over, and the step asks again: one import, and the store's image."""
    image = fresh_image()
    policy = asked.etc / "policy.yaml"
    policy.write_text(policy.read_text().replace("wait: 60s", "wait: 3s") + "step_images: {after_wait: wait}\n")
    with registry.silent():
        job = asked.cluster.submit(naming(asked, image), ALICE, "--nodelist=n1")
        wait_until("the end of the first wait", lambda: asked.failures(job) != [], 60)
    ended = asked.finish(job)
    assert (ended.state, Path(image_path(ended.output)).parent) == ("COMPLETED", asked.store / "images"), ended
    assert {event["code"] for event in asked.failures(job)} == {"image-wait-expired"}


def test_a_step_is_told_why_root_has_no_image_for_it(asked: Site, fresh_image: Callable[[], str]) -> None:
    """The sentence and the hint of the prolog's verdict. The user's own import would find the same: there is none."""
    policy = asked.etc / "policy.yaml"
    policy.write_text(policy.read_text().replace("tag_ttl: 24h", "tag_ttl: 24h\n  max_size: 1KiB"))
    ended = asked.finish(asked.cluster.submit(naming(asked, fresh_image()), ALICE, "--nodelist=n1"))
    assert ended.state == "FAILED"
    assert "is too large: its import takes more than 1024 bytes" in ended.output
    (failed,) = asked.failures(ended.job_id)
    assert (failed["code"], failed["hook"]) == ("image-too-large", "step-images")
    assert "importing it for you alone" not in ended.output


@pytest.mark.report
def test_a_cancelled_job_does_not_hold_its_step(
    asked: Site, registry: Registry, fresh_image: Callable[[], str]
) -> None:
    """Root's process for it ends with it while the registry is silent, and that is no crash: no alert fires."""
    image, before, first_lines = fresh_image(), ended(asked), begun(asked)
    with registry.silent():
        job = asked.cluster.submit(naming(asked, image), ALICE, "--nodelist=n1")
        wait_until("the wait", lambda: answering(asked) != [], 60)
        wait_until("its first line", lambda: begun(asked) > first_lines, 20)
        asked.cluster.admin("scancel", str(job))
        assert asked.cluster.wait(job).state == "CANCELLED"
        asked.cluster.wait_idle()
        wait_until("the end of root's wait", lambda: answering(asked) == [], 10)
    assert ended(asked) - before == Counter({"ended": 1})
    asked.wait_imports()


def test_root_records_the_use_of_a_job_that_can_leave_no_note(asked: Site, fresh_image: Callable[[], str]) -> None:
    """The store has its image, but nobody has recorded a use within a day; so the image stays for a lease from now."""
    image = fresh_image()
    asked.write_policy("rules:\n  - {name: everyone}\n")
    first = asked.finish(asked.cluster.submit(naming(asked, image), BOB, "--nodelist=n1"))
    lease = asked.store / "images/leases" / Path(image_path(first.output)).stem
    two_days_ago = time.time() - 2 * 86400
    for use in (lease, asked.var / "n1/uses" / lease.name):
        os.utime(use, (two_days_ago, two_days_ago))
    second = asked.finish(asked.cluster.submit(naming(asked, image), BOB, "--nodelist=n1"))
    assert image_path(second.output) == image_path(first.output)
    assert lease.stat().st_mtime > two_days_ago + 86400


HET_RULES = """\
rules:
  - {name: main, match: {partition: main}, profiles: [numba]}
  - {name: rest}
"""


def test_steps_of_a_heterogeneous_job_are_served(asked: Site, fresh_image: Callable[[], str]) -> None:
    """Each component's, although its tasks know the leader's job id alone, and one of both; one has no record."""
    images = {group: fresh_image() for group in ("0", "1", "0,1")}
    asked.write_policy(HET_RULES)
    ask = f"path=$({importer(asked)} get docker://%s) && echo $path"
    steps = [f"srun --het-group={group} sh -c '{ask % image}'" for group, image in images.items()]
    components = ("--nodelist=n1", ":", "--nodelist=n2", "--partition=ci")
    ended = asked.finish(asked.cluster.submit("\n".join(["#!/bin/sh", *steps, ""]), ALICE, *components))
    leader, other, *both = [Path(line) for line in ended.output.splitlines()]
    assert ([path.parent for path in (leader, other, *both)], both[0]) == ([asked.store / "images"] * 4, both[1])
    imported = [event["image"] for event in asked.audit("--event", "image.imported")]
    assert [imported.count(image) for image in images.values()] == [1, 1, 1]
    for number, group in enumerate("01"):
        job_id = ended.job_id + number
        served = asked.images(job_id)
        assert {found["hook"] for found in served} == {"step-images"}
        assert images[group] in {found["image"] for found in served}
