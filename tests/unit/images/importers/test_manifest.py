"""Manifests: layers, the manifest for a machine in a list, and nothing from what is neither."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from warmstart.images.importers.manifest import FOREIGN, LARGEST, MOST_LAYERS, TOO_MANY, ImageManifest, is_for, read

ONE, TWO = f"sha256:{'1' * 64}", f"sha256:{'2' * 64}"
UNKNOWN = ImageManifest(0)
NONE = ImageManifest(0, is_one=False)


def listed(*entries: tuple[str, str, str]) -> str:
    return json.dumps(
        {"manifests": [{"digest": d, "platform": {"os": system, "architecture": a}} for d, system, a in entries]}
    )


def layered(*layers: object) -> str:
    return json.dumps({"schemaVersion": 2, "config": {}, "layers": layers})


def test_adds_the_sizes_of_layers() -> None:
    given_layers = [{"digest": ONE, "size": 5}, {"digest": TWO, "size": 0}, {"digest": ONE, "size": 5}]
    assert read(layered(*given_layers), "x86_64") == ImageManifest(10)


@pytest.mark.parametrize(
    ("entries", "child"),
    [
        ([(ONE, "linux", "arm64"), (TWO, "linux", "amd64"), (ONE, "unknown", "unknown")], TWO),
        ([(ONE, "windows", "amd64"), (TWO, "linux", "amd64")], TWO),
        ([(ONE, "linux", "amd64"), (TWO, "linux", "amd64")], ""),
        ([(ONE, "linux", "arm64")], ""),
        ([("sha512:00", "linux", "amd64")], ""),
        ([], ""),
    ],
)
def test_chooses_the_manifest_for_this_machine(entries: list[tuple[str, str, str]], child: str) -> None:
    """If there is exactly one; otherwise skopeo decides, which knows variants of CPUs."""
    assert read(listed(*entries), "x86_64") == ImageManifest(0, child)


@pytest.mark.parametrize(
    "text",
    [
        '{"manifests": [1]}',
        '{"manifests": [{"platform": []}]}',
        layered(ONE),
        layered({"digest": ONE}),
        layered({"digest": ONE, "size": -1}),
        layered({"digest": ONE, "size": LARGEST + 1}),
        layered({"digest": ONE, "size": 1.5}),
        layered({"digest": ONE, "size": True}),
        layered({"digest": "../../etc/passwd", "size": 1}),
        layered({"digest": [ONE], "size": 1}),
    ],
)
def test_a_manifest_that_is_not_understood_says_nothing(text: str) -> None:
    assert read(text, "x86_64") == UNKNOWN


@pytest.mark.threat(46)
@pytest.mark.parametrize("layer", [{"digest": ONE, "size": 1}, {}, 1])
def test_too_many_layers_are_told_before_any_is_fetched(layer: object) -> None:
    assert read(layered(*[layer] * (MOST_LAYERS + 1)), "x86_64") == ImageManifest(0, problem=TOO_MANY)
    assert read(layered(*[layer] * MOST_LAYERS), "x86_64").problem == ""


def test_a_foreign_layer_is_told() -> None:
    foreign = {"digest": TWO, "size": 5, "urls": ["https://example.com/layer"]}
    assert read(layered({"digest": ONE, "size": 5, "urls": []}, foreign), "x86_64").problem == FOREIGN


@pytest.mark.parametrize(
    ("machine", "architecture", "fits"),
    [
        ("x86_64", "amd64", True),
        ("x86_64", "386", True),
        ("x86_64", "arm64", False),
        ("aarch64", "arm64", True),
        ("aarch64", "amd64", False),
        ("aarch64", "386", False),
        ("x86_64", "", True),
        ("x86_64", None, True),
        ("loongarch64", "loong64", True),
    ],
)
def test_what_a_machine_runs(machine: str, architecture: object, fits: bool) -> None:
    assert is_for(machine, architecture) is fits


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "null",
        "1",
        '"layers"',
        "{}",
        "[" * 100_000,
        '{"manifests": {}}',
        '{"layers": 1}',
        '{"schemaVersion": 1, "fsLayers": []}',
        '{"errors": [{"code": "UNAVAILABLE"}]}',
        "<html><body>We are back at 18:00.</body></html>",
    ],
)
def test_what_is_no_manifest_is_told_apart(text: str) -> None:
    assert read(text, "x86_64") == NONE


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.just(ONE),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["manifests", "layers", "digest", "size", "platform"]), inner, max_size=3)
    ),
    max_leaves=10,
)


@given(JSON)
def test_never_fails(data: object) -> None:
    assert read(json.dumps(data), "x86_64").size >= 0
