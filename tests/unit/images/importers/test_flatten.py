"""Making one archive of an image's layers: what wins, what is hidden, what is refused."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import os
import random
import subprocess
import tarfile
from collections.abc import Sequence
from contextlib import suppress
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
NOTHING = Additions({}, ())


def layers_in(directory: Path, archives: Sequence[bytes]) -> list[LayerArchive]:
    found = []
    for number, data in enumerate(archives):
        blob = directory / f"layer{number}"
        blob.write_bytes(gzip.compress(data, 1))
        found.append(LayerArchive(str(blob), f"sha256:{hashlib.sha256(data).hexdigest()}"))
    return found


class Result:
    """The archive that `flatten` wrote."""

    def __init__(
        self, directory: Path, *layers: Sequence[Item], bounds: ImageBounds = ROOMY, added: Additions = NOTHING
    ) -> None:
        out = io.BytesIO()
        flatten.flatten(layers_in(directory, [archive(layer) for layer in layers]), added, out, bounds)
        out.seek(0)
        self.tar = tarfile.open(fileobj=out)  # noqa: SIM115 - in memory
        self.names = self.tar.getnames()

    def content(self, name: str) -> bytes:
        """Return the content of a file or of what a hard link leads to."""
        file = self.tar.extractfile(name)
        assert file is not None
        return file.read()

    def mode(self, name: str) -> int:
        return self.tar.getmember(name).mode


def test_the_upper_layer_wins(tmp_path: Path) -> None:
    result = Result(tmp_path, [Item("f", content=b"old"), Item("g", content=b"kept")], [Item("f", content=b"new")])
    assert result.content("f") == b"new"
    assert result.content("g") == b"kept"
    assert sorted(result.names) == ["f", "g"]


def test_a_whiteout_hides_lower_layers_but_not_its_own(tmp_path: Path) -> None:
    lower = [Item("d", "directory"), Item("d/old"), Item("f", content=b"old")]
    upper = [Item(".wh.d"), Item("f", content=b"new"), Item(".wh.f")]
    result = Result(tmp_path, lower, upper)
    assert result.names == ["f"]
    assert result.content("f") == b"new"


def test_an_opaque_directory_hides_what_lower_ones_hold(tmp_path: Path) -> None:
    lower = [Item("d", "directory", 0o700), Item("d/old"), Item("d/sub", "directory"), Item("d/sub/old")]
    result = Result(tmp_path, lower, [Item("d", "directory", 0o750), Item("d/.wh..wh..opq"), Item("d/new")])
    assert sorted(result.names) == ["d", "d/new"]
    assert result.mode("d") == 0o750


AUFS = [
    Item(".wh..wh.aufs"),
    Item(".wh..wh.orph", "directory"),
    Item(".wh..wh.plnk", "directory", 0o700),
    Item(".wh..wh.plnk/12.34", content=b"data"),
    Item("d/.wh..wh.sub/x"),
    Item("d/kept"),
]


@pytest.mark.report
def test_what_aufs_wrote_for_itself_is_not_in_the_image(tmp_path: Path) -> None:
    result = Result(tmp_path, [*AUFS, Item("l", "hardlink", target=".wh..wh.plnk/12.34")])
    assert sorted(result.names) == ["d", "d/kept", "l"]
    assert result.content("l") == b"data"
    assert not result.tar.getmember("l").islnk()


@pytest.mark.report
def test_what_aufs_wrote_for_itself_is_not_in_an_unpacked_tree(tmp_path: Path) -> None:
    for item in AUFS:
        path = tmp_path / "tree" / item.name
        path.parent.mkdir(parents=True, exist_ok=True)
        if item.kind == "directory":
            path.mkdir(item.mode)
        else:
            path.write_bytes(item.content)
    unpacked.finish(str(tmp_path / "tree"), NOTHING)
    assert [str(path.relative_to(tmp_path / "tree")) for path in sorted((tmp_path / "tree").rglob("*"))] == [
        "d",
        "d/kept",
    ]


@pytest.mark.parametrize("kind", ["file", "symlink", "fifo"])
def test_what_replaces_a_directory_hides_what_it_held(tmp_path: Path, kind: str) -> None:
    lower = [Item("d", "directory"), Item("d/old")]
    assert Result(tmp_path, lower, [Item("d", kind, target="t" if kind == "symlink" else "")]).names == ["d"]


def test_a_directory_that_replaced_a_file_that_replaced_a_directory_is_new(tmp_path: Path) -> None:
    stack = [Item("d", "directory"), Item("d/oldest")], [Item("d")], [Item("d", "directory"), Item("d/new")]
    assert sorted(Result(tmp_path, *stack).names) == ["d", "d/new"]


def test_a_directorys_mode_is_the_uppermost_entrys(tmp_path: Path) -> None:
    lower = [Item("d", "directory", 0o700), Item("e", "directory", 0o711)]
    result = Result(tmp_path, lower, [Item("d", "directory", 0o1777), Item("e/f")])
    assert (result.mode("d"), result.mode("e")) == (0o1777, 0o711)


def test_owners_can_read_everything(tmp_path: Path) -> None:
    items = [Item("d", "directory", 0), Item("shadow", mode=0), Item("sudo", mode=0o4111)]
    result = Result(tmp_path, items)
    assert (result.mode("d"), result.mode("shadow"), result.mode("sudo")) == (0o700, 0o400, 0o4511)


def test_a_device_becomes_an_empty_file(tmp_path: Path) -> None:
    member = Result(tmp_path, [Item("null", "device", 0o666)]).tar.getmember("null")
    assert (member.isreg(), member.size, member.mode) == (True, 0, 0o666)


def test_a_hard_link_may_have_its_target_in_a_lower_layer(tmp_path: Path) -> None:
    result = Result(tmp_path, [Item("f", content=b"data")], [Item("l", "hardlink", target="f")])
    assert result.names == ["f", "l"]
    assert result.content("l") == b"data"


def test_a_hard_link_keeps_a_target_that_is_hidden(tmp_path: Path) -> None:
    stack = [Item("f", content=b"old")], [Item("l", "hardlink", target="f")], [Item("f", content=b"new")]
    result = Result(tmp_path, *stack)
    assert (result.content("l"), result.content("f")) == (b"old", b"new")
    assert not result.tar.getmember("l").islnk()


def test_a_hard_links_target_that_has_passed_by_is_read_again(tmp_path: Path) -> None:
    lower = [Item("f", content=b"old"), Item("l", "hardlink", target="f"), Item("m", "hardlink", target="l")]
    result = Result(tmp_path, lower, [Item(".wh.f")])
    assert sorted(result.names) == ["l", "m"]
    assert (result.content("l"), result.content("m")) == (b"old", b"old")
    assert result.tar.getmember("m").islnk()


@pytest.mark.parametrize(
    "layer",
    [
        [Item("f"), Item("f")],
        [Item("d", "directory"), Item("d")],
        [Item("l", "symlink", target="d"), Item("l/f")],
        [Item("l/f"), Item("l", "symlink", target="d")],
        [Item("l", "hardlink", target="nowhere")],
        [Item("../f")],
        [Item("l", "hardlink", target="../f")],
        [Item("d/f"), Item(".wh.d")],
    ],
    ids=[
        "twice",
        "two types",
        "through a link",
        "link after",
        "no target",
        "parent",
        "link to parent",
        "removed and used",
    ],
)
def test_what_depends_on_the_order_is_left_to_the_unpacker(tmp_path: Path, layer: list[Item]) -> None:
    with pytest.raises(Unsupported):
        Result(tmp_path, layer)


def test_a_hard_link_to_itself_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidImage, match="hard link to itself"):
        Result(tmp_path, [Item("d/f", content=b"kept")], [Item("d/f", "hardlink", target="./d/f")])


def test_a_hard_link_to_what_it_replaces_is_left_to_the_unpacker(tmp_path: Path) -> None:
    links = [Item("a", "hardlink", target="f"), Item("f", "hardlink", target="a")]
    with pytest.raises(Unsupported, match="comes before"):
        Result(tmp_path, [Item("f", content=b"kept")], links, [Item(".wh.a")])


def test_a_link_to_a_hidden_link_to_what_comes_later_is_left_to_the_unpacker(tmp_path: Path) -> None:
    links = [Item("d/l", "hardlink", target="f"), Item("f", content=b"new"), Item("m", "hardlink", target="d/l")]
    with pytest.raises(Unsupported, match="comes before"):
        Result(tmp_path, [Item("f", content=b"old")], links, [Item("d")])


def test_an_upper_layer_that_leads_through_a_lower_link_is_left_to_the_unpacker(tmp_path: Path) -> None:
    with pytest.raises(Unsupported):
        Result(tmp_path, [Item("lib", "symlink", target="usr/lib")], [Item("lib/f")])


@pytest.mark.parametrize(
    ("layers", "made"),
    [
        ([[]], True),
        ([[Item("var/cache/w", "directory", 0o700)]], True),
        ([[Item("var", "symlink", target="tmp")]], False),
        ([[Item("var/cache/w")]], False),
        ([[Item("var", "symlink", target="tmp")], [Item(".wh.var")]], True),
        ([[Item("var", "symlink", target="tmp")], [Item("var", "directory")]], True),
    ],
    ids=["nothing", "a directory", "a link above", "a file", "a link that was removed", "a link that was replaced"],
)
def test_a_directory_is_made_where_nothing_is(tmp_path: Path, layers: list[list[Item]], made: bool) -> None:
    result = Result(tmp_path, *layers, added=Additions({}, (b"var/cache/w",)))
    assert ("var/cache/w" in result.names and result.tar.getmember("var/cache/w").isdir()) == made
    assert len(result.names) == len(set(result.names))


def test_what_comes_on_top_hides_what_the_image_has(tmp_path: Path) -> None:
    lower = [Item("etc/rc", content=b"old"), Item("etc/kept", "hardlink", target="etc/rc"), Item("dev/null")]
    added = Additions({b"etc/rc": b"new"}, (b"etc/rc/below",))
    result = Result(tmp_path, lower, [Item("etc/rc", "symlink", target="/tmp/x")], added=added)
    assert (result.content("etc/rc"), result.content("etc/kept")) == (b"new", b"old")
    assert sorted(result.names) == ["etc", "etc/kept", "etc/rc"]


def test_a_link_in_the_place_of_its_directory_is_left_to_the_unpacker(tmp_path: Path) -> None:
    with pytest.raises(Unsupported):
        Result(tmp_path, [Item("etc", "symlink", target="usr/etc")], added=Additions({b"etc/rc": b"x"}, ()))


def test_bytes_and_files_are_bounded(tmp_path: Path) -> None:
    with pytest.raises(BoundsExceeded):
        Result(tmp_path, [Item("f", content=bytes(100_000))], bounds=ImageBounds(99_999, 10))
    with pytest.raises(BoundsExceeded):
        Result(tmp_path, [Item("f"), Item("g"), Item("l", "hardlink", target="g")], bounds=ImageBounds(1 << 20, 2))


def test_a_sparse_file_is_left_to_the_unpacker_and_counts_with_its_holes(tmp_path: Path) -> None:
    (tmp_path / "sparse").write_bytes(b"")
    with (tmp_path / "sparse").open("r+b") as file:
        file.truncate(1 << 30)
    for form in ("--format=gnu", "--sparse-version=0.1", "--sparse-version=1.0"):
        tar = ["tar", "-C", tmp_path, *([] if "gnu" in form else ["--format=posix"]), form, "-cSf"]
        subprocess.run([*tar, tmp_path / "layer.tar", "sparse"], check=True)
        layers = layers_in(tmp_path, [(tmp_path / "layer.tar").read_bytes()])
        with pytest.raises(Unsupported):
            flatten.flatten(layers, NOTHING, io.BytesIO(), ImageBounds(2 << 30, 10))
        with pytest.raises(BoundsExceeded):
            flatten.flatten(layers, NOTHING, io.BytesIO(), ImageBounds(1 << 20, 10))


def test_a_layer_must_have_the_hash_of_the_configuration(tmp_path: Path) -> None:
    layers = layers_in(tmp_path, [archive([Item("f")])])
    wrong = [layers[0]._replace(diff_id="sha256:" + "0" * 64)]
    with pytest.raises(InvalidImage):
        flatten.flatten(wrong, NOTHING, io.BytesIO(), ROOMY)


def test_what_follows_the_archives_end_counts_in_the_hash(tmp_path: Path) -> None:
    data = archive([Item("f")]) + b"more"
    flatten.flatten(layers_in(tmp_path, [data]), NOTHING, io.BytesIO(), ROOMY)
    layers = layers_in(tmp_path, [data + b"!"])
    with pytest.raises(InvalidImage):
        flatten.flatten(
            [LayerArchive(layers[0].path, f"sha256:{hashlib.sha256(data).hexdigest()}")],
            NOTHING,
            io.BytesIO(),
            ROOMY,
        )


@pytest.mark.parametrize("cut", [0.2, 0.9, 0.99])
def test_a_truncated_layer_is_refused(tmp_path: Path, cut: float) -> None:
    layers = layers_in(tmp_path, [archive([Item("f", content=random.Random(1).randbytes(5000))])])
    blob = Path(layers[0].path)
    blob.write_bytes(blob.read_bytes()[: int(blob.stat().st_size * cut)])
    with pytest.raises((Unsupported, InvalidImage)):
        flatten.flatten(layers, NOTHING, io.BytesIO(), ROOMY)


def test_a_layer_of_several_gzip_members_is_read_to_its_end(tmp_path: Path) -> None:
    data = archive([Item("f", content=bytes(3 << 20)), Item("g")])
    (tmp_path / "layer").write_bytes(gzip.compress(data[:1000]) + gzip.compress(data[1000:]))
    out = io.BytesIO()
    flatten.flatten(
        [LayerArchive(str(tmp_path / "layer"), f"sha256:{hashlib.sha256(data).hexdigest()}")], NOTHING, out, ROOMY
    )
    assert b"g" in out.getvalue()


@pytest.mark.parametrize("form", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_names_are_bytes(tmp_path: Path, form: int) -> None:
    name = b"d\xc3\xa4/\xff\n".decode("utf-8", "surrogateescape")
    layers = layers_in(tmp_path, [archive([Item(name, content=b"x")], form)])
    out = io.BytesIO()
    flatten.flatten(layers, NOTHING, out, ROOMY)
    out.seek(0)
    with tarfile.open(fileobj=out) as tar:
        assert name in tar.getnames()


@given(st.binary(max_size=4000))
def test_a_layer_of_any_bytes_is_read_or_refused(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    blob = tmp_path_factory.mktemp("any") / "layer"
    blob.write_bytes(data)
    with pytest.raises((Unsupported, InvalidImage)):
        flatten.flatten([LayerArchive(str(blob), "sha256:" + "0" * 64)], NOTHING, io.BytesIO(), ROOMY)


@given(st.data())
def test_a_damaged_archive_is_read_or_refused(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    chance = random.Random(data.draw(st.integers(0, 1 << 30)))
    tar = bytearray(archive(random_stack(chance)[0]))
    for _ in range(data.draw(st.integers(1, 20))):
        tar[chance.randrange(len(tar))] = chance.randrange(256)
    out = io.BytesIO()
    with suppress(Unsupported, InvalidImage, BoundsExceeded):
        flatten.flatten(layers_in(tmp_path_factory.mktemp("damaged"), [bytes(tar)]), NOTHING, out, ROOMY)
        assert out.getvalue().endswith(bytes(1024))


@pytest.fixture
def layout(tmp_path: Path) -> Path:
    stack = [Item("./", "directory", 0o555), Item("f", content=b"x")], [Item("l", "hardlink", target="f")]
    write_layout(tmp_path / "layout", [archive(layer) for layer in stack])
    return tmp_path / "layout"


def make(layout: Path, *bounds: int) -> int:
    """Run the program on the layout; bounds are bytes and files."""
    size, files = bounds or (1 << 20, 100)
    return flatten.run(str(layout), "import", str(layout.parent / "r.sqsh"), ImageBounds(size, files))


def test_the_program_makes_a_squashfs(layout: Path) -> None:
    assert make(layout) == 0
    out = layout.parent / "out"
    subprocess.run(["unsquashfs", "-no-progress", "-quiet", "-d", out, layout.parent / "r.sqsh"], check=True)
    tree = tree_of(out)
    assert tree.entries[b"."] == ("directory", 0o755)
    assert tree.entries[b"f"] == ("file", 0o644, 1000, b"x")
    assert tree.links == [[b"f", b"l"]]


def test_a_failure_leaves_no_result_and_says_why(layout: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert make(layout, 0, 0) == flatten.TOO_LARGE
    assert capfd.readouterr().err == "too large\n"
    assert not (layout.parent / "r.sqsh").exists()


def test_a_mksquashfs_that_reads_no_archives_is_left_alone(layout: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old = layout.parent / "mksquashfs"
    old.write_text("#!/bin/sh\necho mksquashfs version 4.4 '(2019/08/29)'\n", "utf-8")
    old.chmod(0o755)
    monkeypatch.setattr(flatten, "MKSQUASHFS", str(old))
    assert make(layout) == flatten.UNSUPPORTED


def test_an_image_that_mksquashfs_crashes_on_is_unpacked(layout: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flatten, "_pack", lambda *_: ["/bin/sh", "-c", "kill -SEGV $$"])
    assert make(layout) == flatten.UNSUPPORTED


def test_a_failing_mksquashfs_is_reported(
    layout: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    full = layout.parent / "mksquashfs"
    said = "mksquashfs version 4.5.1"
    full.write_text(
        f"#!/bin/sh\n[ $1 != -version ] || exec echo {said}\necho No space left on device >&2\nexit 1\n", "utf-8"
    )
    full.chmod(0o755)
    monkeypatch.setattr(flatten, "MKSQUASHFS", str(full))
    assert make(layout) == 1
    assert "No space left on device" in capfd.readouterr().err


@pytest.mark.parametrize("name", ["manifest", "config", "layer", "short layer"])
def test_what_the_nodes_disk_has_damaged_is_no_fault_of_the_image(
    layout: Path, name: str, capfd: pytest.CaptureFixture[str]
) -> None:
    path = layout / "blobs" / "sha256" / json.loads((layout / "index.json").read_text())["manifests"][0]["digest"][7:]
    if name != "manifest":
        manifest = json.loads(path.read_text())
        part = manifest["config"] if name == "config" else manifest["layers"][0]
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


def test_a_damaged_index_is_refused(layout: Path) -> None:
    (layout / "index.json").write_bytes(b"[" * 100_000)
    assert make(layout) == flatten.INVALID


@settings(max_examples=10)
@given(st.randoms(use_true_random=False))
def test_any_stack_becomes_what_umoci_unpacks(tmp_path_factory: pytest.TempPathFactory, chance: random.Random) -> None:
    compare_with_umoci(tmp_path_factory.mktemp("stack"), random_stack(chance))


def compare_with_umoci(base: Path, stack: list[list[Item]]) -> None:
    """Compare the squashfs of an image with the tree that the importer made before."""
    write_layout(base / "layout", [archive(layer) for layer in stack])
    status = make(base / "layout", 1 << 30, 10_000)
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
