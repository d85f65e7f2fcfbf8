"""A node unpacks an image for the first job that names it, and the second finds it: real Slurm, a real registry."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.lib.accounts import ALICE, BOB, IMPORT
from tests.lib.processes import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.lib.site import Site

RULES = "  unpack: {{keep: {keep}}}\nrules: [{{name: all, scope: user}}]\n"
SLEEP = "#!/bin/sh\necho began; while [ ! -e {go} ]; do sleep 0.1; done\n"


@pytest.fixture
def shelf(site: Site) -> Iterator[Path]:
    """Have nodes keep unpacked images; return where n1 has them."""
    place = site.cluster.base / "shelf"
    place.mkdir()
    site.write_policy(RULES.format(keep="1GiB"), workspace=f"{site.workspace}\n  shelf: {place}")
    yield place / "n1" / "images"
    site.write_policy()
    shutil.rmtree(place)


def unpacked(site: Site, job: int) -> dict[str, Any]:
    """Return what a job's step said."""
    found = site.told("unpack", job)
    assert found, site.audit()
    return found[0]


def test_the_first_job_waits_and_the_second_finds_it(site: Site, shelf: Path, fresh_image: Callable[[], str]) -> None:
    """While a job has it, it stays; when none does, it goes if it is too much."""
    image, go = fresh_image(), site.cluster.base / "go-on"
    words = (f"--comment=warmstart: image={image}", "--nodelist=n1")
    first = site.cluster.submit("#!/bin/sh\n", ALICE, *words)
    assert site.finish(first).state == "COMPLETED"
    step = unpacked(site, first)
    tree = shelf / step["tree"] / "tree"
    assert (tree / "etc/number").read_text().strip().isdecimal()
    assert (tree / "etc/number").stat().st_uid == site.cluster.account(IMPORT).uid
    (event,) = [event for event in site.audit() if event["event"] == "image.unpacked" and event["tree"] == step["tree"]]
    assert (event["job_id"], event["image"]) == (first, image)

    second = site.cluster.submit(SLEEP.format(go=go), BOB, *words)
    out = site.cluster.account(BOB).home / f"slurm-{second}.out"
    wait_until("the second job", lambda: out.exists() and out.read_text() == "began\n", 60)
    again = unpacked(site, second)
    assert again["tree"] == step["tree"]
    listed = site.command("images", "unpacked", "--json", node="n1").stdout
    rows = [row for row in json.loads(listed) if row["node"] == "n1"]
    assert [(row["state"], row["jobs"], row["reference"]) for row in rows] == [("in use", str(second), image)]
    site.write_policy(RULES.format(keep="1B"), workspace=f"{site.workspace}\n  shelf: {shelf.parent.parent}")
    site.command("maintain", "--node", "n1")
    assert tree.exists()
    go.touch()
    site.finish(second)
    site.command("maintain", "--node", "n1")
    assert os.listdir(shelf) == []
