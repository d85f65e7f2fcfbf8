"""Read an image's manifest: its layers, or the manifest for this machine in a list. Runs as the import account.

OCI image specification (image-manifest.md, image-index.md) and Docker's schema 2. The text is whatever somebody pushed.
"""

from __future__ import annotations

import json
from typing import NamedTuple

from warmstart.images.reference import is_digest

MOST_LAYERS = 1000
TOO_MANY = f"it has more than {MOST_LAYERS} layers"
# Docker's foreign layers (OCI: non-distributable): skopeo leaves them where they are.
FOREIGN = "a layer is not in its registry but at an address of its own"
LARGEST = 1 << 50  # bytes of one layer; more is nonsense
# GOARCH (Go's internal/goarch) for the machine of uname(2).
_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64", "ppc64le": "ppc64le", "s390x": "s390x", "riscv64": "riscv64"}


class ImageManifest(NamedTuple):
    """What a manifest says. All is empty if it is not understood; skopeo then decides."""

    size: int  # bytes of all layers
    child: str = ""  # in a list: the digest of the manifest for this machine
    is_one: bool = True  # False: the text is neither a manifest nor a list of manifests
    problem: str = ""  # why no image can be made of it


def read(text: str, machine: str) -> ImageManifest:
    """Return what a manifest says; `machine` is this node's, of uname(2)."""
    try:
        document = json.loads(text)
        if not any(isinstance(document[key], list) for key in ("manifests", "layers") if key in document):
            return ImageManifest(0, is_one=False)
    except (ValueError, TypeError, RecursionError):
        return ImageManifest(0, is_one=False)
    try:
        if "manifests" in document:
            return ImageManifest(0, _choose(document["manifests"], machine))
        described = document["layers"]
        if len(described) > MOST_LAYERS:
            return ImageManifest(0, problem=TOO_MANY)
        size = sum(map(_size_of, described))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return ImageManifest(0)
    return ImageManifest(size, problem=FOREIGN if any(map(is_foreign, described)) else "")


def is_foreign(descriptor: dict[str, object]) -> bool:
    """Return whether a layer is one that skopeo does not fetch."""
    return bool(descriptor.get("urls"))


def is_for(machine: str, architecture: object) -> bool:
    """Return whether a machine (uname(2)) runs what a configuration says to be built so, as far as that is known."""
    wanted = _ARCHITECTURES.get(machine, architecture)
    return not architecture or architecture == wanted or (architecture == "386" and wanted == "amd64")


def _choose(manifests: object, machine: str) -> str:
    """Return the digest of the only manifest for this machine and Linux, "" if there is none or more than one."""
    if not isinstance(manifests, list):
        raise TypeError
    wanted = {"os": "linux", "architecture": _ARCHITECTURES.get(machine, "")}
    digests = []
    for each in manifests:
        platform = each.get("platform", {})
        if {key: platform.get(key) for key in wanted} == wanted:
            digests.append(str(each["digest"]))
    return digests[0] if len(digests) == 1 and is_digest(digests[0]) else ""


def _size_of(descriptor: object) -> int:
    if not isinstance(descriptor, dict):
        raise TypeError
    digest, size = descriptor["digest"], descriptor["size"]
    if type(digest) is not str or not is_digest(digest) or type(size) is not int or not 0 <= size <= LARGEST:
        raise ValueError
    return size
