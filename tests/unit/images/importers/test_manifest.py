"""Manifests: layers, the manifest for a machine in a list, and nothing from what is neither."""

from __future__ import annotations

import json

import pytest

from warmstart.images.importers.manifest import FOREIGN, LARGEST, MOST_LAYERS, TOO_MANY, ImageManifest, is_for, read

ONE, TWO = f"sha256:{'1' * 64}", f"sha256:{'2' * 64}"
UNKNOWN = ImageManifest(0)
NONE = ImageManifest(0, is_one=False)


def listed(*entries: tuple[str, str, str]) -> str:
    """Return a list of manifests: digest, operating system, architecture."""
    return json.dumps(
        {"manifests": [{"digest": d, "platform": {"os": system, "architecture": a}} for d, system, a in entries]}
    )


def layered(*layers: object) -> str:
    return json.dumps({"schemaVersion": 2, "config": {}, "layers": layers})


@pytest.mark.parametrize(
    ("text", "found"),
    [
        # A layer that is there twice counts twice.
        (layered(*[{"digest": ONE, "size": 5}, {"digest": TWO, "size": 0}] * 2), ImageManifest(10)),
        (layered({"digest": TWO, "size": 5, "urls": ["https://example.com/layer"]}), ImageManifest(5, problem=FOREIGN)),
        # Exactly one for this machine; otherwise skopeo decides, which knows variants of CPUs.
        (listed((ONE, "linux", "arm64"), (TWO, "linux", "amd64"), (ONE, "unknown", "")), ImageManifest(0, TWO)),
        (listed((ONE, "windows", "amd64"), (TWO, "linux", "amd64")), ImageManifest(0, TWO)),
        (listed((ONE, "linux", "amd64"), (TWO, "linux", "amd64")), UNKNOWN),
        (listed((ONE, "linux", "arm64")), UNKNOWN),
        (listed(("sha512:00", "linux", "amd64")), UNKNOWN),
        (listed(), UNKNOWN),
        # What is not understood says nothing: the import goes on without knowing its layers.
        ('{"manifests": [1]}', UNKNOWN),
        ('{"manifests": [{"platform": []}]}', UNKNOWN),
        (layered(ONE), UNKNOWN),
        (layered({"digest": ONE}), UNKNOWN),
        (layered({"digest": ONE, "size": -1}), UNKNOWN),
        (layered({"digest": ONE, "size": LARGEST + 1}), UNKNOWN),
        (layered({"digest": ONE, "size": True}), UNKNOWN),
        (layered({"digest": "../../etc/passwd", "size": 1}), UNKNOWN),
        (layered({"digest": [ONE], "size": 1}), UNKNOWN),
        # Nobody takes the digest of a maintenance page for an image.
        ("", NONE),
        ("[]", NONE),
        ("{}", NONE),
        ("[" * 100_000, NONE),
        ('{"manifests": {}}', NONE),
        ('{"layers": 1}', NONE),
        ('{"schemaVersion": 1, "fsLayers": []}', NONE),
        ("<html><body>We are back at 18:00.</body></html>", NONE),
    ],
)
def test_what_a_manifest_says(text: str, found: ImageManifest) -> None:
    assert read(text, "x86_64") == found


@pytest.mark.threat(46)
@pytest.mark.parametrize("layer", [{"digest": ONE, "size": 1}, {}, 1])
def test_too_many_layers_are_told_before_any_is_fetched(layer: object) -> None:
    assert read(layered(*[layer] * (MOST_LAYERS + 1)), "x86_64") == ImageManifest(0, problem=TOO_MANY)
    assert read(layered(*[layer] * MOST_LAYERS), "x86_64").problem == ""


@pytest.mark.parametrize(
    ("machine", "architecture", "fits"),
    [
        ("x86_64", "amd64", True),
        ("x86_64", "386", True),
        ("x86_64", "arm64", False),
        ("aarch64", "arm64", True),
        ("aarch64", "386", False),
        # What nobody says, or nobody here knows, is taken.
        ("x86_64", "", True),
        ("x86_64", None, True),
        ("loongarch64", "loong64", True),
    ],
)
def test_what_a_machine_runs(machine: str, architecture: object, fits: bool) -> None:
    assert is_for(machine, architecture) is fits
