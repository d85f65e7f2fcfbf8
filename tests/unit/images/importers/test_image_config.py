"""What an image's configuration becomes: the trees that the real enroot makes, and files for other runtimes."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.lib.image_configs import CASES, Tree, recorded, tree_at
from tests.lib.layer_stacks import archive, write_layout
from warmstart.images.importers import flatten, image_config, unpacked
from warmstart.images.importers.layer_reader import ImageBounds, InvalidImage

RC = recorded()["nothing"]["etc/rc"][2]
OURS = (".singularity.d", "ch")
FSTAB = "${{ENROOT_ROOTFS}}{0} {0} none x-create=dir,bind,rw,nosuid,nodev\n"


def file(content: str) -> list[str]:
    return ["file", "644", content]


# What differs from enroot's trees, by image and path: docs/reference/images.md, Beside `enroot import`.
DIFFERENT: dict[str, Tree] = {
    "a word of several lines": {"etc/rc": file(RC.replace("'/bin/sh'", "'sh' '-c' 'echo one\necho two'"))},
    "a word that is not ASCII": {"etc/rc": file(RC.replace("'/bin/sh'", "'echo' 'Grüße'"))},
    "a working directory with quotes": {"etc/rc": file(RC.replace('"/"', '"/a\\"b"'))},
    "a volume that is none": {"etc/fstab": file(FSTAB.format("/ok"))},
    "a label of two lines": {"etc/rc": file(f"# a b c\n\n{RC}")},
    "a working directory in one that others may not enter": {"home": ["directory", "750", ""]},
}


def flattened(layout: Path, mount_point: str = "") -> Path:
    """Make the squashfs of an image; return its tree, b"" where it can't be flattened."""
    status = flatten.run(str(layout), "import", f"{layout}.sqsh", ImageBounds(1 << 20, 100), mount_point)
    if status == flatten.UNSUPPORTED:
        return unpacked_tree(layout, mount_point)
    assert status == 0
    to = layout.with_name("flattened")
    subprocess.run(["unsquashfs", "-no-progress", "-quiet", "-d", to, f"{layout}.sqsh"], check=True)
    return to


def unpacked_tree(layout: Path, mount_point: str = "") -> Path:
    to = layout.with_name("unpacked")
    umoci = ["umoci", "raw", "unpack", "--rootless", "--image", f"{layout}:import", str(to)]
    subprocess.run(umoci, check=True, capture_output=True)
    assert unpacked.main([str(layout), "import", str(to), mount_point]) == 0
    return to


def enroots(tree: Tree) -> Tree:
    return {path: entry for path, entry in tree.items() if path.partition("/")[0] not in OURS}


@pytest.mark.parametrize("make", [flattened, unpacked_tree])
@pytest.mark.parametrize("name", CASES)
def test_the_tree_is_enroots(tmp_path: Path, name: str, make: Callable[[Path], Path]) -> None:
    expected = recorded()[name]
    for path, entry in DIFFERENT.get(name, {}).items():
        assert expected[path] != entry
        expected[path] = entry
    write_layout(tmp_path / "layout", [archive(items) for items in CASES[name].layers], config=CASES[name].config)
    assert enroots(tree_at(make(tmp_path / "layout"))) == expected


def added(config: dict[str, object], mount_point: str = "") -> image_config.Additions:
    return image_config.additions(json.dumps({"config": config}).encode(), mount_point)


@pytest.mark.report
@pytest.mark.parametrize("command", [[], ["echo", "it's"]])
def test_an_entry_point_of_one_empty_word_is_none(command: list[str]) -> None:
    """As Docker has it; enroot's script starts the program "", which ends with 126. Other empty words are words."""
    plain = added({"Cmd": command}).files[b"etc/rc"]
    assert added({"Cmd": command, "Entrypoint": [""]}).files[b"etc/rc"] == plain
    assert b"exec '' 'x'" in added({"Cmd": command, "Entrypoint": ["", "x"]}).files[b"etc/rc"]


@pytest.mark.threat(48)
def test_a_shell_reads_the_variables_as_they_are(tmp_path: Path) -> None:
    """Whatever quotes, spaces and lines are in them. `releases/runtimes.py` asks Apptainer's own shell."""
    values = {"A": 'it\'s "x" $HOME `id` \\', "B": "one\ntwo ", "C": "", "D": "image's", "PATH": "/image"}
    pairs = [*(f"{name}={value}" for name, value in values.items()), "not-a-name=x; id", "E"]
    script = tmp_path / "env.sh"
    script.write_bytes(added({"Env": pairs}).files[b".singularity.d/env/10-docker2singularity.sh"])
    shown = ["/bin/sh", "-euc", f'. {script}; for n in A B C D PATH; do eval "printf \'%s\\0\' \\"\\$$n\\""; done']
    done = subprocess.run(shown, env={"D": "mine", "PATH": "/usr/bin"}, check=True, stdout=subprocess.PIPE)
    assert done.stdout.decode().split("\0")[:-1] == list(values.values())


def test_apptainers_shell_reads_the_quotes() -> None:
    """It leaves a backslash between two pairs of single quotes as it is (1.4.5, tried)."""
    files = added({"Env": ["A=it's"]}).files
    assert files[b".singularity.d/env/10-docker2singularity.sh"] == b"""export A='it'"'"'s'\n"""


def test_ch_run_gets_lines_that_it_can_read() -> None:
    """It takes one pair of quotes away, and stops at a line without `=`."""
    environment = added({"Env": ["A='quoted'", "B=one\ntwo", "C", "D=x y"]}).files[b"ch/environment"]
    assert environment == b"A=''quoted''\nD='x y'\n"


@pytest.mark.parametrize(
    "config",
    [
        {"Env": {"A": "b"}}, {"Env": [1]}, {"Cmd": ["a\0b"]}, {"Labels": {"a": 1}}, {"Labels": ["a"]},
        {"Volumes": ["/a"]}, {"WorkingDir": 7}, {"WorkingDir": "/" + "x" * 300}, {"WorkingDir": "/x" * 300},
    ],
    ids=str,
)  # fmt: skip
def test_a_configuration_that_docker_does_not_take_is_malformed(config: dict[str, object]) -> None:
    with pytest.raises(InvalidImage):
        added(config)


@pytest.mark.parametrize("document", [b"[]", b"{", b'{"config": [1]}', b"[" * 100_000])
def test_a_document_that_is_no_configuration_is_malformed(document: bytes) -> None:
    with pytest.raises(InvalidImage):
        image_config.additions(document, "")


@pytest.mark.parametrize(
    "path", ["/..", "/../x", "/a/../b", "/a/..", "a", "/a b", "/a\nb", "/$HOME", "/a\\040b", "/", ""]
)
@pytest.mark.threat(48)
def test_a_volume_that_would_mount_something_else_is_left_out(path: str) -> None:
    assert added({"Volumes": {path: {}}}).files[b"etc/fstab"] == b""


@pytest.mark.parametrize("path", ["/a", "/a/b", "/..a/...", "/a/", "/ä"])
def test_a_volume_is_mounted(path: str) -> None:
    assert added({"Volumes": {path: {}}}).files[b"etc/fstab"].decode() == FSTAB.format(path)


def test_no_directory_is_made_outside() -> None:
    assert added({"WorkingDir": "/../../x"}, "/var/cache/w").directories == (b"var/cache/w",)
    assert added({"WorkingDir": "//a/./b/"}).directories == (b"a/b",)
    assert added({}).directories == ()
