"""On real Slurm: a sample built again tells a planted entry."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import pytest

from tests.cluster.accounts import ALICE
from tests.cluster.site import Site
from tests.support.cache_files import triton_kernel

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

RULES = """\
{more}
rules:
  - name: everyone
    profiles: [triton]
    scope: site
"""
SAMPLE = "seed: {verify: 99%}"


@pytest.fixture
def site(installed: Site) -> Iterator[Site]:
    """Give the site with an empty store."""
    store = installed.cluster.base / "store-trust"
    shutil.rmtree(store, ignore_errors=True)
    installed.new_store(store)
    write(installed)
    yield installed
    installed.write_policy()


def write(site: Site, more: str = "") -> None:
    """Write the policy with further keys."""
    site.write_policy(RULES.format(more=more), constant="enroot", store=str(site.cluster.base / "store-trust"))


def kernels(site: Site) -> tuple[Path, Path, str]:
    """Return directories with a kernel as Triton makes it, and with other code in it; and the file that differs."""
    built = dict(sorted(triton_kernel("3.9").items(), key=lambda item: "__grp__" in item[0]))  # the group comes last
    cubin = next(name for name in built if name.endswith(".cubin"))
    code = 0x1090  # in .text.add_kernel
    made = []
    for name, files in (
        ("true", built),
        ("planted", {**built, cubin: built[cubin][:code] + b"!!" + built[cubin][code + 2 :]}),
    ):
        top = site.cluster.base / f"kernel-{name}"
        for path, content in files.items():
            (top / path).parent.mkdir(parents=True, exist_ok=True)
            (top / path).write_bytes(content)
        made.append(top)
    return made[0], made[1], cubin


def job(site: Site, node: str, make: Path | None = None) -> tuple[int, list[str]]:
    """Run a job that makes an entry, if it has none; return its id, and the entries that it found."""
    build = f'cp -r {make}/[!_]* "$TRITON_CACHE_DIR"; touch "$TRITON_CACHE_DIR"/*/__grp__*' if make else "true"
    script = f'#!/bin/sh\nls "$TRITON_CACHE_DIR"\n[ "$(ls "$TRITON_CACHE_DIR")" ] || {{ {build}; }}\n'
    job_id = site.cluster.submit(script, ALICE, f"--nodelist={node}")
    ended = site.finish(job_id)
    assert ended.state == "COMPLETED", ended
    return job_id, ended.output.split()


@pytest.mark.threat(53)
def test_a_sample_tells_a_planted_entry(site: Site) -> None:
    """The sampled job begins cold, says so, and counts as no miss; its user's next one replaces what was planted."""
    true, planted, cubin = kernels(site)
    first, found = job(site, "n1", planted)
    assert found == []
    assert site.events(first, "cache.harvested")[0]["entries"] == 1
    write(site, SAMPLE)
    sampled, found = job(site, "n2", true)
    if found:  # one of a hundred is not of the sample
        sampled, found = job(site, "n2", true)
    assert found == []
    (step,) = (event for event in site.events(sampled, "step.finished") if event["step"] == "seed")
    assert step["cold"] == {"triton": "sampled"}
    (told,) = site.events(sampled, "cache.compared")
    assert (told["equal"], told["different"]) == (0, 1)
    (difference,) = told["differences"]
    assert (difference["file"], difference["built"] != difference["published"]) == (cubin, True)
    assert "on purpose" in site.command("explain", str(sampled)).stdout
    write(site)
    wary, found = job(site, "n2", true)
    assert found == []
    assert f"because job {sampled}" in site.command("explain", str(wary)).stdout
    _, found = job(site, "n2")
    assert len(found) == 1
