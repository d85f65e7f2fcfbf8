"""`warmstart images` on a real store, with a real registry: what each command does, prints, and exits with."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.accounts import IMPORT, STORE, VALIDATE
from tests.integration.image_place import Place, opened_place, squashfs
from tests.unit.entry.command_line import answer, installed, run
from warmstart.paths import Installation

POLICY = """\
version: 1
paths: {{workspace: {base}/workspace, store: {base}/store, audit: {base}/log/audit.jsonl}}
store_user: {store}
import_user: {importer}
validate_user: {validator}
images:
  importer: oci
  registries: ["{registry}"]
  insecure: ["{registry}"]
  adopt: [{{directory: {base}/launchers, owners: [{store}]}}]
  keep: {{high: 99%, low: 98%, floor: 0%}}
"""


@pytest.fixture(scope="module")
def place(capable_host: None) -> Iterator[Place]:
    """Return a registry, accounts and a directory for this module."""
    with opened_place() as made:
        yield made


@pytest.fixture
def site(place: Place) -> Iterator[Installation]:
    """Return an installation with an empty store."""
    place.new_store("store")
    place.own(place.base / "launchers").chmod(0o755)
    policy = POLICY.format(
        base=place.base, store=STORE, importer=IMPORT, validator=VALIDATE, registry=place.registry.url
    )
    prefix = place.base / "prefix"
    yield installed(prefix, policy)
    shutil.rmtree(place.base / "store")
    shutil.rmtree(prefix)


def imported(site: Installation, place: Place) -> Any:  # noqa: ANN401 - JSON
    """Import the registry's image."""
    return answer(site, "images", "import", f"{place.registry.url}/team/tool:1")


def test_import_list_show(site: Installation, place: Place) -> None:
    """What was imported is listed with its size and where it came from, and shown by reference, digest or name."""
    reference = f"{place.registry.url}/team/tool:1"
    first = imported(site, place)
    assert first["how"] == "imported"
    assert imported(site, place) == {**first, "how": "reused"}
    (entry,) = answer(site, "images", "list")
    assert (entry["reference"], entry["bytes"], entry["path"]) == (reference, first["bytes"], first["path"])
    assert (entry["uid"], entry["protected"], entry["nodes"]) == (-1, "in use", [os.uname().nodename])
    for text in (reference, first["digest"], entry["name"][:8]):
        assert answer(site, "images", "show", text) == entry
    listed = run(site, "images", "list")
    assert listed.exit_code == 0
    assert reference in listed.stdout
    assert "1 images, " in listed.stdout
    assert "sha256:" in run(site, "images", "show", reference).stdout
    assert run(site, "images", "show", "no/such:1").exit_code == 1


def test_import_says_whose_fault_it_is(site: Installation, place: Place) -> None:
    """A missing image ends with 1 and the error; a refused registry, or none, with 2."""
    missing = run(site, "images", "import", f"{place.registry.url}/team/none:1", "--json")
    assert missing.exit_code == 1
    assert '"code": "image-not-found"' in missing.stdout
    assert run(site, "images", "import", "evil.example.com/a:1").exit_code == 2
    assert run(site, "images", "import", "NO SUCH THING").exit_code == 2
    said = run(site, "images", "import", f"{place.registry.url}/team/none:1")
    assert (said.exit_code, "does not exist" in said.stderr) == (1, True)


def test_verify_reads_every_byte(site: Installation, place: Place) -> None:
    """Whole is 0; one changed byte is 1, and the image is in quarantine with the reason."""
    path = Path(imported(site, place)["path"])
    assert [row["problem"] for row in answer(site, "images", "verify")] == [""]
    assert "as it was when it was last read" in run(site, "images", "verify").stdout
    with path.open("r+b") as stream:
        stream.seek(200)
        stream.write(b"damage")
    found = run(site, "images", "verify", f"{place.registry.url}/team/tool:1")
    assert found.exit_code == 1
    assert not path.exists()
    (reason,) = (place.base / "store" / "images" / "quarantine").glob("*.reason")
    assert "SHA-256" in reason.read_text()
    assert answer(site, "images", "list") == []


def test_pin_and_evict(site: Installation, place: Place) -> None:
    """What is in use or pinned stays unless it is forced; without names nothing goes that has room."""
    name = Path(imported(site, place)["path"]).name.removesuffix(".sqsh")
    assert answer(site, "images", "evict") == {"evicted": [], "kept": []}
    kept = run(site, "images", "evict", name, "--json")
    assert (kept.exit_code, name in kept.stdout) == (1, True)
    shutil.rmtree(place.base / "store" / "images" / "used")
    assert run(site, "images", "pin", name).exit_code == 0
    assert answer(site, "images", "show", name)["protected"] == "pinned"
    assert run(site, "images", "evict", name).exit_code == 1
    assert run(site, "images", "unpin", name).exit_code == 0
    assert run(site, "images", "unpin", name).exit_code == 1
    assert answer(site, "images", "evict", name, "--force") == {"evicted": [name], "kept": []}
    assert answer(site, "images", "list") == []
    assert imported(site, place)["how"] == "imported"


def test_adopt(site: Installation, place: Place) -> None:
    """A launcher's image is taken over from the policy's directory; where there is none, that is said."""
    reference = f"{place.registry.url}/team/adopted:1"
    nothing = run(site, "images", "adopt", reference)
    assert (nothing.exit_code, "no directory that has it" in nothing.stderr) == (1, True)
    path = squashfs(place.base / "theirs.sqsh", 40_000)
    theirs = place.base / "launchers" / f"{reference.translate(str.maketrans('/:', '__'))}.sqsh"
    path.rename(theirs)
    os.chown(theirs, place.accounts[STORE].uid, -1)
    found = answer(site, "images", "adopt", reference)
    assert found["how"] == "adopted"
    assert Path(found["path"]).read_bytes() == theirs.read_bytes()
    assert answer(site, "images", "import", reference)["how"] == "reused"
    (entry,) = answer(site, "images", "list")
    assert entry["importer"] == f"adopted from {theirs}"


def test_every_change_is_audited(site: Installation, place: Place) -> None:
    """Who looks leaves no line; who imports, pins and evicts does."""
    name = Path(imported(site, place)["path"]).name.removesuffix(".sqsh")
    run(site, "images", "pin", name)
    run(site, "images", "unpin", name)
    run(site, "images", "evict", name, "--force")
    run(site, "images", "list")
    lines = [json.loads(line) for line in (place.base / "log" / "audit.jsonl").read_text().splitlines()]
    told = [line["event"] for line in lines if line["hook"] == "images" and line["event"].startswith("image.")]
    assert told[-4:] == ["image.imported", "image.pinned", "image.unpinned", "image.evicted"]


def test_upkeep_of_the_store_looks_after_images(site: Installation, place: Place) -> None:
    """`tend --store` evicts above the watermark and removes what a dead producer left; what is in use stays."""
    imported(site, place)
    images = place.base / "store" / "images"
    left = images / ".tmp-dead"
    left.touch()
    os.utime(left, (0, 0))
    assert answer(site, "tend", "--store")["evicted"] == 0
    assert not left.exists()
    assert len(answer(site, "images", "list")) == 1
