"""One archive of an image's layers: what wins, what is hidden, what is refused; and the program that packs it."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import os
import random
import subprocess
import tarfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.lib.layer_stacks import Item, archive, random_stack, tree_of, write_layout
from warmstart.images.importers import flatten, image_config, manifest, oci_layout, unpacked
from warmstart.images.importers.image_config import Additions
from warmstart.images.importers.layer_reader import (
    BoundsExceeded,
    ImageBounds,
    InvalidImage,
    LayerArchive,
    Unsupported,
)

ROOMY = ImageBounds(1 << 30, 10_000)
SMALL = ImageBounds(1 << 20, 100)
NOTHING = Additions({}, ())
Layers = list[list[Item]]


def file(name: str, content: bytes = b"", mode: int = 0o644) -> Item:
    return Item(name, "file", mode, content)


def folder(name: str, mode: int = 0o755) -> Item:
    return Item(name, "directory", mode)


def hard(name: str, target: str) -> Item:
    return Item(name, "hardlink", target=target)


def soft(name: str, target: str) -> Item:
    return Item(name, "symlink", target=target)


def layers_in(directory: Path, archives: Sequence[bytes]) -> list[LayerArchive]:
    """Write archives as compressed layers."""
    found = []
    for number, data in enumerate(archives):
        blob = directory / f"layer{number}"
        blob.write_bytes(gzip.compress(data, 1))
        found.append(LayerArchive(str(blob), f"sha256:{hashlib.sha256(data).hexdigest()}"))
    return found


def flattened(layers: list[LayerArchive], added: Additions = NOTHING, bounds: ImageBounds = ROOMY) -> tarfile.TarFile:
    out = io.BytesIO()
    flatten.flatten(layers, added, out, bounds)
    out.seek(0)
    return tarfile.open(fileobj=out)


def check(tar: tarfile.TarFile, expected: Mapping[str, bytes | int]) -> None:
    """Compare names, and what is given of each: a file's content, or a mode."""
    assert sorted(tar.getnames()) == sorted(expected)
    for name, value in expected.items():
        if isinstance(value, int):
            assert tar.getmember(name).mode == value, name
        else:
            content = tar.extractfile(name)
            assert content is not None, name
            assert content.read() == value, name


STACKS: dict[str, tuple[Layers, dict[str, bytes | int]]] = {
    "the upper layer wins": (
        [[file("f", b"old"), file("g", b"kept")], [file("f", b"new")]],
        {"f": b"new", "g": b"kept"},
    ),
    "a whiteout hides lower layers but not its own": (
        [[folder("d"), file("d/old"), file("f", b"old")], [file(".wh.d"), file("f", b"new"), file(".wh.f")]],
        {"f": b"new"},
    ),
    "an opaque directory hides what lower ones hold": (
        [
            [folder("d", 0o700), file("d/old"), folder("d/sub"), file("d/sub/old")],
            [folder("d", 0o750), file("d/.wh..wh..opq"), file("d/new")],
        ],
        {"d": 0o750, "d/new": b""},
    ),
    "a file in the place of a directory": ([[folder("d"), file("d/old")], [file("d")]], {"d": b""}),
    "a link in the place of a directory": ([[folder("d"), file("d/old")], [soft("d", "t")]], {"d": 0o777}),
    "a FIFO in the place of a directory": ([[folder("d"), file("d/old")], [Item("d", "fifo")]], {"d": 0o644}),
    "a directory that replaced a file that replaced a directory is new": (
        [[folder("d"), file("d/oldest")], [file("d")], [folder("d"), file("d/new")]],
        {"d": 0o755, "d/new": b""},
    ),
    "a directory's mode is the uppermost entry's": (
        [[folder("d", 0o700), folder("e", 0o711)], [folder("d", 0o1777), file("e/f")]],
        {"d": 0o1777, "e": 0o711, "e/f": b""},
    ),
    "owners can read everything": (
        [[folder("d", 0), file("shadow", mode=0), file("sudo", mode=0o4111)]],
        {"d": 0o700, "shadow": 0o400, "sudo": 0o4511},
    ),
    "a device becomes an empty file": ([[Item("null", "device", 0o666)]], {"null": b""}),
    "a hard link to a lower layer": ([[file("f", b"data")], [hard("l", "f")]], {"f": b"data", "l": b"data"}),
    "a hard link keeps a target that is hidden": (
        [[file("f", b"old")], [hard("l", "f")], [file("f", b"new")]],
        {"l": b"old", "f": b"new"},
    ),
    "the target of hard links that has passed by is read again": (
        [[file("f", b"old"), hard("l", "f"), hard("m", "l")], [file(".wh.f")]],
        {"l": b"old", "m": b"old"},
    ),
}


@pytest.mark.parametrize("name", STACKS)
def test_a_stack_becomes_one_archive(tmp_path: Path, name: str) -> None:
    layers, expected = STACKS[name]
    check(flattened(layers_in(tmp_path, [archive(layer) for layer in layers])), expected)


AUFS = [
    file(".wh..wh.aufs"),
    folder(".wh..wh.orph"),
    folder(".wh..wh.plnk", 0o700),
    file(".wh..wh.plnk/12.34", b"data"),
    file("d/.wh..wh.sub/x"),
    file("d/kept"),
]


@pytest.mark.report
def test_what_aufs_wrote_for_itself_is_not_in_the_image(tmp_path: Path) -> None:
    """All `.wh..wh.*`, as Docker does it; a hard link has its content from there."""
    tar = flattened(layers_in(tmp_path, [archive([*AUFS, hard("l", ".wh..wh.plnk/12.34")])]))
    check(tar, {"d": 0o755, "d/kept": b"", "l": b"data"})
    assert not tar.getmember("l").islnk()


@pytest.mark.report
def test_what_aufs_wrote_for_itself_is_not_in_an_unpacked_tree(tmp_path: Path) -> None:
    """Umoci leaves it there."""
    for item in AUFS:
        path = tmp_path / "tree" / item.name
        path.parent.mkdir(parents=True, exist_ok=True)
        if item.kind == "directory":
            path.mkdir(item.mode)
        else:
            path.write_bytes(item.content)
    unpacked.finish(str(tmp_path / "tree"), NOTHING)
    left = sorted((tmp_path / "tree").rglob("*"))
    assert [str(path.relative_to(tmp_path / "tree")) for path in left] == ["d", "d/kept"]


REFUSED: dict[str, tuple[Layers, type[Exception], str]] = {
    "a name twice": ([[file("f"), file("f")]], Unsupported, "twice"),
    "a name of two types": ([[folder("d"), file("d")]], Unsupported, "twice"),
    "through a link of its layer": ([[soft("l", "d"), file("l/f")]], Unsupported, "lead through"),
    "through a link that comes after": ([[file("l/f"), soft("l", "d")]], Unsupported, "twice"),
    "through a link of a lower layer": ([[soft("lib", "usr/lib")], [file("lib/f")]], Unsupported, "leads through"),
    "a hard link without a target": ([[hard("l", "nowhere")]], Unsupported, "no target"),
    "out of its directory": ([[file("../f")]], Unsupported, "leads out"),
    "a hard link out of its directory": ([[hard("l", "../f")]], Unsupported, "leads out"),
    "a directory removed and used": ([[file("d/f"), file(".wh.d")]], Unsupported, "removes a directory"),
    # Its name leads to another one, which leads to what the lower layer has under its name.
    "a hard link to what it replaces": (
        [[file("f", b"kept")], [hard("a", "f"), hard("f", "a")], [file(".wh.a")]], Unsupported, "comes before",
    ),
    # It leads to what the lower layer has, though no upper one shows the link between.
    "a hidden link to what comes later": (
        [[file("f", b"old")], [hard("d/l", "f"), file("f", b"new"), hard("m", "d/l")], [file("d")]],
        Unsupported, "comes before",
    ),
    # No program can extract it, and mksquashfs crashes.
    "a hard link to itself": ([[file("d/f", b"kept")], [hard("d/f", "./d/f")]], InvalidImage, "hard link to itself"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_depends_on_the_order_is_left_to_the_unpacker(tmp_path: Path, name: str) -> None:
    layers, error, word = REFUSED[name]
    with pytest.raises(error, match=word):
        flattened(layers_in(tmp_path, [archive(layer) for layer in layers]))


@pytest.mark.parametrize(
    ("layers", "made"),
    [
        ([[]], True),
        ([[folder("var/cache/w", 0o700)]], True),
        ([[soft("var", "tmp")]], False),
        ([[file("var/cache/w")]], False),
        ([[soft("var", "tmp")], [file(".wh.var")]], True),
        ([[soft("var", "tmp")], [folder("var")]], True),
    ],
    ids=["nothing", "a directory", "a link above", "a file", "a link that was removed", "a link that was replaced"],
)
def test_a_directory_is_made_where_nothing_is(tmp_path: Path, layers: Layers, made: bool) -> None:
    added = Additions({}, (b"var/cache/w",))
    tar = flattened(layers_in(tmp_path, [archive(layer) for layer in layers]), added)
    names = tar.getnames()
    assert ("var/cache/w" in names and tar.getmember("var/cache/w").isdir()) == made
    assert len(names) == len(set(names))


def test_what_comes_on_top_hides_what_the_image_has(tmp_path: Path) -> None:
    """A hard link keeps its content; nothing is left of devices; no directory takes a file's place."""
    lower = [file("etc/rc", b"old"), hard("etc/kept", "etc/rc"), file("dev/null")]
    layers = layers_in(tmp_path, [archive(lower), archive([soft("etc/rc", "/tmp/x")])])
    tar = flattened(layers, Additions({b"etc/rc": b"new"}, (b"etc/rc/below",)))
    check(tar, {"etc": 0o755, "etc/kept": b"old", "etc/rc": b"new"})
    with pytest.raises(Unsupported):  # what is in a link in the place of its directory may belong elsewhere
        flattened(layers_in(tmp_path, [archive([soft("etc", "usr/etc")])]), Additions({b"etc/rc": b"x"}, ()))


@pytest.mark.parametrize("form", ["--format=gnu", "--sparse-version=0.1", "--sparse-version=1.0"])
def test_a_sparse_file_is_left_to_the_unpacker_and_counts_with_its_holes(tmp_path: Path, form: str) -> None:
    with (tmp_path / "sparse").open("wb") as content:
        content.truncate(1 << 30)
    tar = ["tar", "-C", str(tmp_path), *([] if "gnu" in form else ["--format=posix"]), form, "-cSf"]
    subprocess.run([*tar, str(tmp_path / "layer.tar"), "sparse"], check=True)
    layers = layers_in(tmp_path, [(tmp_path / "layer.tar").read_bytes()])
    with pytest.raises(Unsupported):
        flattened(layers, bounds=ImageBounds(2 << 30, 10))
    with pytest.raises(BoundsExceeded):
        flattened(layers, bounds=ImageBounds(1 << 20, 10))


def test_a_layer_has_the_hash_of_the_configuration_to_its_last_byte(tmp_path: Path) -> None:
    data = archive([file("f")]) + b"more"
    (layer,) = layers_in(tmp_path, [data])
    check(flattened([layer]), {"f": b""})
    layers_in(tmp_path, [data + b"!"])
    with pytest.raises(InvalidImage):
        flattened([layer])


def test_a_layer_of_several_gzip_members_is_read_to_its_end(tmp_path: Path) -> None:
    data = archive([file("f", bytes(3 << 20)), file("g")])
    (layer,) = layers_in(tmp_path, [data])
    Path(layer.path).write_bytes(gzip.compress(data[:1000]) + gzip.compress(data[1000:]))
    assert flattened([layer]).getnames() == ["f", "g"]


# The program.


@pytest.fixture
def layout(tmp_path: Path) -> Path:
    """Write an image of two layers."""
    stack = [folder("./", 0o555), file("f", b"x")], [hard("l", "f")]
    write_layout(tmp_path / "layout", [archive(layer) for layer in stack])
    return tmp_path / "layout"


def make(layout: Path, bounds: ImageBounds = SMALL) -> int:
    return flatten.run(str(layout), "import", str(layout.parent / "r.sqsh"), bounds)


def test_a_failure_leaves_no_result_and_says_why(layout: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert make(layout, ImageBounds(0, 0)) == flatten.TOO_LARGE
    assert capfd.readouterr().err == "too large\n"
    assert not (layout.parent / "r.sqsh").exists()


@pytest.mark.parametrize(
    ("script", "status"),
    [
        ("echo mksquashfs version 4.4 '(2019/08/29)'", flatten.UNSUPPORTED),  # it reads no archives
        # It packs a tree by other code than an archive.
        ("[ $1 != -version ] || exec echo mksquashfs version 4.5.1\nkill -SEGV $$", flatten.UNSUPPORTED),
        ("[ $1 != -version ] || exec echo mksquashfs version 4.5.1\necho disk full >&2\nexit 1", 1),
    ],
    ids=["old", "crashes", "fails"],
)
def test_an_image_is_unpacked_where_mksquashfs_is_old_or_crashes(
    layout: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], script: str, status: int
) -> None:
    program = layout.parent / "mksquashfs"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    monkeypatch.setattr(flatten, "MKSQUASHFS", str(program))
    assert make(layout) == status
    assert ("disk full" in capfd.readouterr().err) == (status == 1)


@pytest.mark.parametrize("name", ["manifest", "config", "layer", "short layer"])
def test_what_the_nodes_disk_has_damaged_is_no_fault_of_the_image(
    layout: Path, name: str, capfd: pytest.CaptureFixture[str]
) -> None:
    """That would be remembered, and no other node would import it."""
    path = layout / "blobs" / "sha256" / json.loads((layout / "index.json").read_text())["manifests"][0]["digest"][7:]
    if name != "manifest":
        document = json.loads(path.read_text())
        part = document["config"] if name == "config" else document["layers"][0]
        path = path.parent / part["digest"][7:]
    whole = path.read_bytes()
    path.write_bytes(whole[:-9] if name == "short layer" else whole[:-9] + b"123456789")
    assert make(layout) == 1
    assert "other bytes on this node" in capfd.readouterr().err


def test_an_image_for_another_machine_is_refused(layout: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    other = "s390x" if os.uname().machine != "s390x" else "x86_64"
    monkeypatch.setattr(os, "uname", lambda: SimpleNamespace(machine=other))
    assert make(layout) == flatten.OTHER_MACHINE
    assert not (layout.parent / "r.sqsh").exists()


@pytest.mark.parametrize(
    ("layers", "problem"),
    [([{}] * (manifest.MOST_LAYERS + 1), manifest.TOO_MANY), ([{"urls": ["https://example.com/l"]}], manifest.FOREIGN)],
)
def test_layers_that_no_image_can_be_made_of(
    layout: Path, capfd: pytest.CaptureFixture[str], layers: list[object], problem: str
) -> None:
    """Also where skopeo has chosen the manifest."""
    index = json.loads((layout / "index.json").read_text())
    digest = index["manifests"][0]["digest"][7:]
    document = json.loads((layout / "blobs" / "sha256" / digest).read_text())
    config = json.loads((layout / "blobs" / "sha256" / document["config"]["digest"][7:]).read_text())
    config["rootfs"]["diff_ids"] = [f"sha256:{'0' * 64}"] * len(layers)
    for entry, content in ((document["config"], config), (index["manifests"][0], document | {"layers": layers})):
        data = json.dumps(content).encode()
        entry["digest"] = f"sha256:{hashlib.sha256(data).hexdigest()}"
        (layout / "blobs" / "sha256" / entry["digest"][7:]).write_bytes(data)
    (layout / "index.json").write_text(json.dumps(index))
    assert make(layout) == flatten.INVALID
    assert capfd.readouterr().err == f"{problem}\n"
    (layout / "index.json").write_bytes(b"[" * 100_000)
    assert make(layout) == flatten.INVALID


@settings(max_examples=10)
@given(st.randoms(use_true_random=False))
def test_any_stack_becomes_what_umoci_unpacks(tmp_path_factory: pytest.TempPathFactory, chance: random.Random) -> None:
    base = tmp_path_factory.mktemp("stack")
    write_layout(base / "layout", [archive(layer) for layer in random_stack(chance)])
    status = make(base / "layout", ROOMY)
    if status == flatten.UNSUPPORTED:
        return
    assert status == 0
    umoci = ["umoci", "raw", "unpack", "--rootless", "--image", f"{base}/layout:import", f"{base}/rootfs"]
    subprocess.run(umoci, check=True, capture_output=True)
    config = oci_layout.read(str(base / "layout"), "import").config
    unpacked.finish(str(base / "rootfs"), image_config.additions(config, ""))
    subprocess.run(["unsquashfs", "-no-progress", "-quiet", "-d", base / "out", base / "r.sqsh"], check=True)
    if os.getuid() != 0:  # unsquashfs leaves these bits to root
        subprocess.run(["chmod", "-R", "ug-s", "--", base / "out", base / "rootfs"], check=True)
    assert tree_of(base / "out") == tree_of(base / "rootfs")
