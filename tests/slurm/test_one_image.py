"""What a tag means to jobs while it moves; and one image on all nodes of a job. A real registry."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.lib.accounts import ALICE, BOB
from tests.lib.held_hooks import held, wrapped
from tests.lib.nonsense import PAGE, Answer, relayed
from tests.lib.processes import wait_until
from tests.lib.several_nodes import left
from tests.lib.tags import is_older, moved
from warmstart.steps.image import REFRESH_S

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.lib.registry import Registry
    from tests.lib.site import Site

RULES = "rules: [{name: all, scope: user}]\n"
SHOW = """#!/bin/sh
srun --ntasks-per-node=1 sh -c \
    'echo "$SLURMD_NODENAME: $([ -z "$WARMSTART_IMAGE" ] || unsquashfs -cat "$WARMSTART_IMAGE" etc/number)"'
"""
ONE = '#!/bin/sh\nunsquashfs -cat "$WARMSTART_IMAGE" etc/number\n'


def submit(site: Site, words: str, *options: str) -> int:
    """Submit a job on n1 and n2 that shows what each node's image has."""
    return site.cluster.submit(SHOW, ALICE, f"--comment=warmstart: {words}", *(options or ("--nodelist=n1,n2",)))


def shown(site: Site, job_id: int) -> dict[str, str]:
    """Return what each node's image had, "" for none, of a job that has ended well."""
    job = site.finish(job_id)
    assert job.state == "COMPLETED", job
    seen = dict(line.split(":") for line in job.output.splitlines() if line.startswith(("n1:", "n2:")))
    return {node: number.strip() for node, number in seen.items()}


def alone(site: Site, user: str, *options: str) -> str:
    """Return what a job on n3 finds in its image."""
    return site.finish(site.cluster.submit(ONE, user, "--nodelist=n3", *options)).output.strip()


@pytest.fixture
def imaged(site: Site) -> Site:
    """Return the site with a rule that gives jobs their images, and nothing else."""
    site.write_policy(RULES)
    return site


def test_a_moved_tag_is_asked_for_on_demand(
    plugged: Site, site: Site, registry: Registry, fresh_image: Callable[[], str]
) -> None:
    """By the word in the comment, or by the plugin's option; at most once in some minutes, whoever asks."""
    site, image = plugged, fresh_image()
    wanted = f"--comment=warmstart: image={image}"
    asked = f"/{image.partition('/')[2].partition(':')[0]}/manifests/"
    first = alone(site, ALICE, wanted)
    moved(site, registry, image, 9001)
    is_older(site, image, REFRESH_S + 1)
    assert alone(site, ALICE, wanted) == first
    assert alone(site, BOB, f"{wanted} refresh") == "9001"
    moved(site, registry, image, 9002)
    before = registry.requests("GET", asked) + registry.requests("HEAD", asked)
    assert alone(site, ALICE, f"{wanted} refresh") == "9001"  # the answer is still young
    assert registry.requests("GET", asked) + registry.requests("HEAD", asked) == before
    is_older(site, image, REFRESH_S + 1)
    assert alone(site, ALICE, f"--warm-image={image}", "--warm-refresh") == "9002"


def test_a_tag_that_moves_between_two_prologs(imaged: Site, registry: Registry, fresh_image: Callable[[], str]) -> None:
    """The second node takes what the head node found, not what the tag means by then."""
    site, image = imaged, fresh_image()
    before = alone(site, BOB, f"--comment=warmstart: image={image}")
    with held(site, "prolog", "n2") as go:
        job = submit(site, f"image={image}")
        wait_until("the head node's image", lambda: bool(site.images(job, "reused")), 30)
        moved(site, registry, image, 9101)
        is_older(site, image, REFRESH_S + 1)
        third = site.cluster.submit(ONE, BOB, f"--comment=warmstart: image={image} refresh", "--nodelist=n3")
        assert site.cluster.wait(third).output == "9101\n"
        go()
        seen = shown(site, job)
    assert seen == {"n1": before, "n2": before}
    assert shown(site, submit(site, f"image={image}")) == {"n1": "9101", "n2": "9101"}


def test_all_nodes_wait_for_one_import(imaged: Site, fresh_image: Callable[[], str]) -> None:
    """The head node asks for it. Of the word there is nothing left after the job."""
    site, image = imaged, fresh_image()
    job = submit(site, f"image={image}")
    (number,) = set(shown(site, job).values())
    assert number
    started = [event for event in site.events(job, "image.imported") if event["image"] == image]
    assert [event["node"] for event in started] == ["n1"]
    assert left(site, job) == []


def test_what_the_head_node_falls_back_to(imaged: Site, registry: Registry, fresh_image: Callable[[], str]) -> None:
    """A page in the registry's place: the last image on both nodes, which are told so, and one question to it."""
    site, name = imaged, fresh_image().partition("/")[2]
    with relayed(registry.url) as relay:
        site.write_policy(RULES, registry=relay.url)
        words = f"image={relay.url}/{name}"
        before = shown(site, submit(site, words))
        is_older(site, name, 86400)
        relay.asked.clear()
        with relay.saying({r"GET .*": Answer(200, PAGE)}):
            job = submit(site, words)
            assert shown(site, job) == before
        assert len([asked for asked in relay.asked if "manifests/1" in asked]) == 1
    stale = {event["node"]: event["digest"] for event in site.images(job, "stale")}
    assert stale.keys() == {"n1", "n2"}
    assert len({*stale.values()}) == 1


@pytest.mark.real_time
def test_a_head_node_that_is_silent(imaged: Site, fresh_image: Callable[[], str]) -> None:
    """Another node waits `images.wait` for its word, and then the job fails, though the image is there."""
    site, image = imaged, fresh_image()
    alone(site, BOB, f"--comment=warmstart: image={image}")
    policy = site.etc / "policy.yaml"
    policy.write_text(policy.read_text().replace("wait: 60s", "wait: 3s"))
    with held(site, "prolog", "n1") as go:
        job = submit(site, f"image={image}")
        wait_until("the other node's verdict", lambda: bool(site.failures(job, "refused")), 60)
        go()
        ended = site.finish(job)
    assert ended.state == "FAILED"
    assert "the head node n1 has named no image within 3 s" in ended.output
    (refused,) = site.failures(job, "refused")
    assert refused["node"] == "n2"


@pytest.mark.sweep
@pytest.mark.threat(44)
def test_a_cancelled_job_whose_head_node_says_nothing(imaged: Site, fresh_image: Callable[[], str]) -> None:
    """The second node asks slurmctld in its place, and is free long before `images.wait` is over."""
    site, image = imaged, fresh_image()
    policy = site.etc / "policy.yaml"
    policy.write_text(policy.read_text().replace("wait: 60s", "wait: 4m"))
    with wrapped(site, "prolog", '[ "$SLURMD_NODENAME" != n1 ] || exit 0'):
        job = submit(site, f"image={image}", "--nodelist=n[1-3]", "--nodes=3")
        wait_until("the other nodes' prologs", lambda: len(site.events(job, "hook.started")) == 2, 30)
        site.cluster.cancel(job)
        site.cluster.wait_idle(100)
    assert site.cluster.job(job).state == "CANCELLED"
    refused = {event["node"]: event["code"] for event in site.failures(job, "refused")}
    assert refused == {"n2": "job-over", "n3": "job-over"}
    for mark in (site.store / "runs").glob("*/over.*.over"):  # maintenance would, a week later
        mark.unlink()
