"""Prefetch in a real cluster."""

from __future__ import annotations

import json
from collections.abc import Callable

from tests.lib.accounts import ALICE
from tests.lib.registry import Registry
from tests.lib.site import RULES, Site

SHOW = '#!/bin/sh\nunsquashfs -s "$WARMSTART_IMAGE" > /dev/null && echo found\n'


def test_a_job_finds_its_image(site: Site, registry: Registry, fresh_image: Callable[[], str]) -> None:
    image = fresh_image()
    site.write_policy(f"prefetch: {{images: ['docker://{image}']}}\n{RULES}")

    def prefetch() -> list[dict[str, str]]:
        done = site.command("prefetch", "--json")
        assert done.returncode == 0, done.stderr
        found: list[dict[str, str]] = json.loads(done.stdout)["images"]
        return found

    assert prefetch() == [{"reference": image, "result": "requested"}]
    site.wait_imports()
    name = image.partition("/")[2].partition(":")[0]
    fetched = registry.requests("GET", f"/{name}/blobs/")
    assert [row["result"] for row in prefetch()] == ["present"]
    job = site.cluster.submit(SHOW, ALICE, f"--comment=warmstart: image={image}")
    assert site.finish(job).output == "found\n"
    assert len(site.images(job, "reused")) == 1
    assert registry.requests("GET", f"/{name}/blobs/") == fetched > 0
