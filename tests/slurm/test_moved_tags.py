"""A tag that moves: jobs have what it meant within `images.tag_ttl`, unless they ask again, which is bounded."""

from __future__ import annotations

import json
import time
from collections.abc import Callable

import pytest

from tests.lib.accounts import ALICE, BOB
from tests.lib.registry import Registry, build_image
from tests.lib.site import Site
from warmstart.steps.image import REFRESH_S

SHOW = '#!/bin/sh\nunsquashfs -cat "$WARMSTART_IMAGE" etc/number\n'


def moved(site: Site, registry: Registry, image: str, number: int) -> None:
    """Push another image under a tag."""
    layout = build_image(site.cluster.base / "images" / f"moved{number}", {"/etc/number": f"{number}\n"})
    registry.push(layout, "latest", image.partition("/")[2])


def is_older(site: Site, image: str, seconds: float) -> None:
    """Let the registry's answer be older."""
    (pointer,) = (site.store / "images/tags").glob(f"*{image.rpartition('/')[2].replace(':', '=')}*")
    known = json.loads(pointer.read_text())
    pointer.write_text(json.dumps({**known, "resolved": known["resolved"] - seconds}))


def shown(site: Site, user: str, words: str) -> str:
    """Return what a job finds in its image."""
    return site.finish(site.cluster.submit(SHOW, user, f"--comment=warmstart: {words}", "--nodelist=n1")).output


def test_a_moved_tag_is_asked_for_on_demand(site: Site, registry: Registry, fresh_image: Callable[[], str]) -> None:
    """By the word in the comment; at most once in some minutes, whoever asks."""
    image = fresh_image()
    asked = f"/{image.partition('/')[2].partition(':')[0]}/manifests/"
    first = shown(site, ALICE, f"image={image}")
    moved(site, registry, image, 9001)
    is_older(site, image, REFRESH_S + 1)
    assert shown(site, ALICE, f"image={image}") == first
    assert shown(site, BOB, f"image={image} refresh") == "9001\n"
    assert shown(site, ALICE, f"image={image}") == "9001\n"
    moved(site, registry, image, 9002)
    before = registry.requests("GET", asked) + registry.requests("HEAD", asked)
    for user in (ALICE, BOB):  # the answer is still young
        assert shown(site, user, f"image={image} refresh") == "9001\n"
    assert registry.requests("GET", asked) + registry.requests("HEAD", asked) == before
    is_older(site, image, REFRESH_S + 1)
    assert shown(site, ALICE, f"image={image} refresh") == "9002\n"


@pytest.mark.usefixtures("plugged")
def test_the_plugin_has_an_option_for_it(site: Site, registry: Registry, fresh_image: Callable[[], str]) -> None:
    """As the word in the comment."""
    image = fresh_image()
    shown(site, ALICE, f"image={image}")
    moved(site, registry, image, int(time.time()))
    is_older(site, image, REFRESH_S + 1)
    job = site.cluster.submit(SHOW, ALICE, f"--warm-image={image}", "--warm-refresh", "--nodelist=n1")
    assert site.finish(job).output.startswith(str(int(time.time()))[:6])
