"""Images whose configuration differs, and the trees that the real enroot makes of them.

`python -m tools.real.configs` imports them with it and writes `data/enroot_trees.json` (CONTRIBUTING.md).
"""

from __future__ import annotations

import json
import stat
from pathlib import Path
from typing import NamedTuple

from tests.lib.layer_stacks import Item

RECORDED = Path(__file__).parent / "data" / "enroot_trees.json"
BASE = [
    Item("etc", "directory", 0o755),
    Item("etc/environment", content=b"LANG=of-the-image\n"),
    Item("etc/passwd", content=b"root:x:0:0::/:/bin/sh\n"),
    Item("home", "directory", 0o750),
    Item("tmp", "directory", 0o755),
    Item("usr", "directory", 0o755),
    Item("usr/bin", "directory", 0o555),
    Item("usr/bin/app", mode=0o555, content=b"#!/bin/sh\n"),
]
PATH = "PATH=/usr/local/bin:/usr/bin:/bin"
GPU = [
    PATH,
    "LD_LIBRARY_PATH=/usr/local/nvidia/lib:/usr/local/nvidia/lib64",
    "NVIDIA_VISIBLE_DEVICES=all",
    "EMPTY=",
    "CUDA_VERSION=12.4",
]


class ImageCase(NamedTuple):
    """An image: its configuration, and its layers, the lowest first."""

    config: dict[str, object]
    layers: tuple[list[Item], ...] = (BASE,)


CASES = {
    "nothing": ImageCase({}),
    "null": ImageCase({"Env": None, "Cmd": None, "Entrypoint": None, "Labels": None, "Volumes": None}),
    "gpu": ImageCase({
        "Env": GPU, "Entrypoint": ["/opt/nvidia/entrypoint.sh"], "WorkingDir": "/workspace", "Cmd": ["bash"],
        "Labels": {"maintainer": "NVIDIA CORPORATION <cudatools@nvidia.com>", "com.nvidia.volumes.needed": "drv"},
    }),
    "command": ImageCase({"Env": [PATH], "Cmd": ["app", "--flag=a b"], "User": "1000:1000"}),
    "entry point": ImageCase({"Env": [PATH], "Entrypoint": ["app", "serve"], "WorkingDir": "/opt/deep/below"}),
    "quotes": ImageCase({
        "Env": ['ONE="', 'DOUBLE="in quotes"', "SINGLE='in quotes'", "IT=it's", "BACK=a\\nb", "DOLLAR=$HOME `id`"],
        "Entrypoint": ["app", "it's", 'say "hi"', "", "$HOME", "`id`", "a\\b", "*", "~"],
        "Labels": {"quote": 'it\'s a "label" `id` $(id)', "empty": ""},
    }),
    "spaces": ImageCase({"Env": ["A= leading", "B=trailing ", "C=tab\there"], "Cmd": [" a ", "b  c"]}),
    "odd variables": ImageCase({
        "Env": ["NO_EQUALS", "1BAD=x", "with-dash=x", "=empty", "ENROOT_X=y", "#C=d", "X=1", "X=2"],
    }),
    "newlines": ImageCase({"Env": [PATH, "LINES=one\ntwo", "MORE=a\nB=c"], "Labels": {"lines": "one\ntwo"}}),
    "unicode": ImageCase({"Env": ["NAME=Grüße"], "Labels": {"who": "Ünï"}}),
    "volumes": ImageCase({"Volumes": {"/data": {}, "/a/b": {}, "/Z": {}}}),
    "working directory that is there": ImageCase({"WorkingDir": "/usr/bin/"}),
    "everything hidden": ImageCase({"Env": [PATH]}, ([
        *BASE, Item("etc/rc", "directory", 0o755), Item("etc/rc/x"), Item("etc/fstab", content=b"/home /mnt\n"),
        Item("etc/rc.local", "symlink", target="/usr/bin/app"), Item("dev", "directory", 0o755), Item("dev/null"),
    ],)),
    "a link in the place of a file": ImageCase({"Env": [PATH]}, (
        [Item("etc", "directory", 0o755), Item("etc/environment", "symlink", target="/tmp/elsewhere"), Item("usr/f")],
    )),
    "etc is a link": ImageCase({"Env": [PATH]}, ([
        Item("usr", "directory", 0o755), Item("usr/etc", "directory", 0o755), Item("usr/etc/passwd", content=b"p\n"),
        Item("etc", "symlink", target="usr/etc"),
    ],)),
    "etc is a link out of the image": ImageCase({"Env": [PATH]}, (
        [Item("usr/f"), Item("etc", "symlink", target="/tmp")],
    )),
    # Below here the importer writes something else, for reasons that docs/reference/images.md gives.
    "a word of several lines": ImageCase({"Cmd": ["sh", "-c", "echo one\necho two"]}),
    "a word that is not ASCII": ImageCase({"Cmd": ["echo", "Grüße"]}),
    "a working directory with quotes": ImageCase({"WorkingDir": '/a"b'}),
    "a volume that is none": ImageCase({"Volumes": {"/../out": {}, "/ok": {}, "/x /y none bind\n/z": {}}}),
    "a working directory in one that others may not enter": ImageCase({"WorkingDir": "/home/me"}),
    "a label of two lines": ImageCase({"Labels": {"a\nb": "c"}}),
}  # fmt: skip


Tree = dict[str, list[str]]  # by path, the kind, the mode in octal, and the content or target


def recorded() -> dict[str, Tree]:
    """Return what enroot made of each image."""
    trees: dict[str, Tree] = json.loads(RECORDED.read_text("utf-8"))
    return trees


def tree_at(root: Path) -> Tree:
    """Return a tree."""
    tree = {}
    for path in [root, *sorted(root.rglob("*"))]:
        status, name = path.lstat(), str(path.relative_to(root))
        mode = f"{stat.S_IMODE(status.st_mode):o}"
        if path.is_symlink():
            tree[name] = ["link", "", str(path.readlink())]
        elif path.is_dir():
            tree[name] = ["directory", mode, ""]
        else:
            tree[name] = ["file", mode, path.read_text("utf-8")]
    return tree
