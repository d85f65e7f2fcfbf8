"""`warmstart images` on a store that refuses root, with a real registry: effects, output and exit statuses."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.lib.accounts import IMPORT, STORE, VALIDATE
from tests.lib.command_line import answer, installed, run
from tests.lib.image_place import Place, Store
from tests.lib.registry import build_image
from warmstart.paths import Installation

POLICY = """\
version: 1
paths: {{workspace: {base}/workspace, store: {path}, audit: {base}/log/audit.jsonl}}
store_user: {store}
import_user: {importer}
validate_user: {validator}
images:
  importer: oci
  registries: ["http://{registry}"]
  keep: {{high: 99%, low: 98%}}
"""


@pytest.fixture
def store(place: Place, request: pytest.FixtureRequest) -> Iterator[Store]:
    """Return an empty store that refuses every uid but its owner's."""
    with place.squashed(request.node.name, coherent=True) as made:
        yield made


@pytest.fixture
def site(place: Place, store: Store) -> Iterator[Installation]:
    policy = POLICY.format(
        base=place.base, path=store.path, store=STORE, importer=IMPORT, validator=VALIDATE, registry=place.registry.url
    )
    prefix = place.base / "prefix"
    yield installed(prefix, policy)
    shutil.rmtree(prefix)


def imported(site: Installation, place: Place) -> Any:  # noqa: ANN401 - JSON
    return answer(site, "images", "import", f"{place.registry.url}/team/tool:1")


def test_import_list_show(site: Installation, place: Place) -> None:
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
    assert "1 images, " in listed.stderr
    assert "sha256:" in run(site, "images", "show", reference).stdout
    assert run(site, "images", "show", "no/such:1").exit_code == 1


def test_refresh_asks_the_registry_again(site: Installation, place: Place, tmp_path: Path) -> None:
    name = "team/moving:1"
    reference = f"{place.registry.url}/{name}"
    for number in (1, 2):
        place.registry.push(build_image(tmp_path / str(number), {"/etc/number": f"{number}\n"}), "latest", name)
        if number == 1:
            first = answer(site, "images", "import", reference)
    assert answer(site, "images", "import", reference) == {**first, "how": "reused"}
    second = answer(site, "images", "import", "--refresh", reference)
    assert (second["how"], second["digest"] != first["digest"]) == ("imported", True)
    assert answer(site, "images", "import", "--refresh", reference) == {**second, "how": "reused"}
    assert answer(site, "images", "import", reference) == {**second, "how": "reused"}
    with place.registry.silent():
        silent = run(site, "images", "import", "--refresh", reference)
    assert (silent.exit_code, reference in silent.stderr) == (1, True)
    assert answer(site, "images", "import", reference)["digest"] == second["digest"]
