"""Read the documents of an OCI layout: which layers an image has; and write a layout with other layers.

A part of the program `flatten`. skopeo has compared the digests of what it fetched. Where something is wrong they
are compared again: what a disk has damaged is no fault of the image, which would be remembered.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from typing import NamedTuple

from warmstart.images.importers.layer_reader import CHUNK, InvalidImage, LayerArchive
from warmstart.images.importers.manifest import FOREIGN, MOST_LAYERS, TOO_MANY, is_foreign

LARGEST_DOCUMENT = 16 << 20  # bytes of a manifest or configuration
DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
DAMAGED = "a layer or document has other bytes on this node than were fetched"
REFERENCE = "org.opencontainers.image.ref.name"


class LayoutImage(NamedTuple):
    """An image in a layout."""

    layers: list[LayerArchive]  # the lowest first
    config: bytes  # the document, as it is


def read(layout: str, tag: str) -> LayoutImage:
    """Return the image `tag` in the OCI layout at `layout`. Raises `InvalidImage` and `OSError`."""
    index = parse(_read_document(os.path.join(layout, "index.json")))
    named = [entry for entry in _list_of(index, "manifests") if _name_of(entry) == tag]
    if len(named) != 1:
        raise InvalidImage(f"the layout has {len(named)} images named {tag}")
    manifest = parse(_read_blob(layout, named[0]))
    document = _read_blob(layout, _part(manifest, "config"))
    diff_ids = _part(parse(document), "rootfs").get("diff_ids")
    described = _list_of(manifest, "layers")
    if len(described) > MOST_LAYERS:
        raise InvalidImage(TOO_MANY)
    if any(map(is_foreign, described)):
        raise InvalidImage(FOREIGN)
    if not isinstance(diff_ids, list) or len(diff_ids) != len(described):
        raise InvalidImage("its manifest and its configuration have different numbers of layers")
    blobs = [_sized_blob(layout, entry) for entry in described]
    layers = [LayerArchive(path, _digest(diff_id)) for path, diff_id in zip(blobs, diff_ids, strict=True)]
    return LayoutImage(layers, document)


def blob_path(layout: str, digest: str) -> str:
    """Return where a layout has the bytes of a digest."""
    return os.path.join(layout, "blobs", *digest.split(":"))


def write_uncompressed(layout: str, tag: str, image: LayoutImage) -> None:
    """Write the documents of a layout that has the layers of `image` as they are: each is its own `diff_id`."""
    layers = [_described(layout, each.diff_id, "layer.v1.tar") for each in image.layers]
    manifest = {
        "schemaVersion": 2,
        "config": _written(layout, image.config, "config.v1+json"),
        "layers": layers,
    }
    named = _written(layout, json.dumps(manifest).encode(), "manifest.v1+json")
    named["annotations"] = {REFERENCE: tag}
    for name, document in (
        ("index.json", {"schemaVersion": 2, "manifests": [named]}),
        ("oci-layout", {"imageLayoutVersion": "1.0.0"}),
    ):
        with open(os.path.join(layout, name), "w", encoding="ascii") as file:
            json.dump(document, file)


def _written(layout: str, data: bytes, kind: str) -> dict[str, object]:
    digest = f"sha256:{hashlib.sha256(data).hexdigest()}"
    with open(blob_path(layout, digest), "wb") as file:
        file.write(data)
    return _described(layout, digest, kind)


def _described(layout: str, digest: str, kind: str) -> dict[str, object]:
    size = os.stat(blob_path(layout, digest)).st_size
    return {"mediaType": f"application/vnd.oci.image.{kind}", "digest": digest, "size": size}


def _name_of(entry: dict[str, object]) -> object:
    annotations = entry.get("annotations")
    return annotations.get(REFERENCE) if isinstance(annotations, dict) else None


def _read_document(path: str) -> bytes:
    with open(path, "rb") as file:
        data = file.read(LARGEST_DOCUMENT + 1)
    if len(data) > LARGEST_DOCUMENT:
        raise InvalidImage("its manifest or configuration is too large")
    return data


def _read_blob(layout: str, descriptor: dict[str, object]) -> bytes:
    digest = _digest(descriptor.get("digest"))
    data = _read_document(blob_path(layout, digest))
    if f"sha256:{hashlib.sha256(data).hexdigest()}" != digest:
        raise OSError(DAMAGED)
    return data


def require_whole(path: str) -> None:
    """Raise `OSError` if a blob has another SHA-256 than its name says: this node's disk is at fault, not the image."""
    sha256 = hashlib.sha256()
    with open(path, "rb") as blob:
        while data := blob.read(CHUNK):
            sha256.update(data)
    if sha256.hexdigest() != os.path.basename(path):
        raise OSError(DAMAGED)


def _sized_blob(layout: str, descriptor: dict[str, object]) -> str:
    digest = _digest(descriptor.get("digest"))
    path = blob_path(layout, digest)
    if os.stat(path).st_size != descriptor.get("size"):
        require_whole(path)
        raise InvalidImage(f"{digest} has another size than its manifest says")
    return path


def _digest(value: object) -> str:
    if not isinstance(value, str) or not DIGEST.fullmatch(value):
        raise InvalidImage("a digest in its manifest or configuration is not a SHA-256")
    return value


def parse(data: bytes) -> dict[str, object]:
    """Return a document, which is a JSON object. Raises `InvalidImage`."""
    try:
        value = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise InvalidImage("its manifest or configuration is not JSON") from error
    return _mapping(value)


def _mapping(value: object) -> dict[str, object]:
    if not isinstance(value, dict):
        raise InvalidImage("its manifest or configuration is malformed")
    return value


def _part(document: dict[str, object], key: str) -> dict[str, object]:
    return _mapping(document.get(key))


def _list_of(document: dict[str, object], key: str) -> list[dict[str, object]]:
    value = document.get(key)
    if not isinstance(value, list):
        raise InvalidImage("its manifest or configuration is malformed")
    return [_mapping(entry) for entry in value]
