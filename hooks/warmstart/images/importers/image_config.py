r"""Turn an image's configuration into files of its tree, which is all that a squashfs has. A part of `flatten`.

| path | read by | holds |
|---|---|---|
| etc/environment | enroot | `ENV` |
| etc/rc, etc/rc.local | enroot | `LABEL` as comments, `WORKDIR`, `ENTRYPOINT`, `CMD`; nothing but comments |
| etc/fstab | enroot | `VOLUME` |
| .singularity.d/env/10-docker2singularity.sh | Apptainer | `ENV` |
| .singularity.d/env/99-base.sh | Apptainer | what it expects in an image that has variables of its own |
| ch/environment | `ch-run --set-env` | `ENV` |

enroot's are what `enroot import` 4.1.2 writes (`docker::configure` in src/docker.sh), byte for byte but for what
docs/reference/images.md lists. It writes them into a layer of its own on top of the image's: whatever the image has at
these paths is hidden, and a link at `etc` becomes a directory. It leaves out what is in `dev`, too.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from warmstart.images.importers import oci_layout
from warmstart.images.importers.layer_reader import InvalidImage, path_of

EMPTIED = b"dev"  # whose content is left out: no device is ever made, and runtimes mount the node's
FILE_MODE, DIRECTORY_MODE = 0o644, 0o755
# enroot mounts what a line of fstab says: no second one, no other word, no variable, no escape.
_VOLUME = re.compile(r"(/(?!\.\.(/|$))[^/\s\\$]+)+/?")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_RC = """\
mkdir -p "{directory}" 2> /dev/null
cd "{directory}" && unset OLDPWD || exit 1

if [ -s /etc/rc.local ]; then
    . /etc/rc.local
fi

if [ $# -gt 0 ]; then
    exec {entrypoint} "$@"
else
    exec {entrypoint} {command}
fi
"""
# With variables of the image's, Apptainer sets the user's (`--env`, APPTAINERENV_*) after this file and never without
# it; the libraries are those that `--nv` brings (action_script.sh, 1.4.5).
_BASE = """\
export LD_LIBRARY_PATH="${LD_LIBRARY_PATH:+$LD_LIBRARY_PATH:}/.singularity.d/libs"
"""
_RC_LOCAL = b"""\
# This file is sourced by /etc/rc when the container starts.
# It can be used to manipulate the entrypoint or the command of the container.
"""


class Additions(NamedTuple):
    """What comes on top of an image's layers. Paths have no slash in front."""

    files: dict[bytes, bytes]  # path → content
    directories: tuple[bytes, ...]  # made where the image has nothing


def additions(document: bytes, mount_point: str) -> Additions:
    """Return what an image's configuration becomes; `mount_point` is where runtimes mount a cache, "" for nowhere.

    Raises `InvalidImage`.
    """
    config = _mapping(oci_layout.parse(document), "config")
    environment, directory = _strings(config, "Env"), "".join(_strings(config, "WorkingDir"))
    parts = [each.partition("=") for each in environment]
    pairs = [(name, value) for name, equals, value in parts if equals and _NAME.fullmatch(name)]
    files = {
        "etc/fstab": "".join(_mount(path) for path in sorted(_mapping(config, "Volumes")) if _VOLUME.fullmatch(path)),
        "etc/environment": "".join(f"{each}\n" for each in environment),
        "etc/rc": _comments(config) + _rc(directory, _strings(config, "Entrypoint"), _strings(config, "Cmd")),
        ".singularity.d/env/10-docker2singularity.sh": "".join(_export(*pair) for pair in pairs),
        ".singularity.d/env/99-base.sh": _BASE,
        # ch-run takes one pair of quotes away, and reads no value of several lines.
        "ch/environment": "".join(f"{name}='{value}'\n" for name, value in pairs if "\n" not in value),
    }
    encoded = {path.encode(): content.encode("utf-8", "replace") for path, content in files.items()}
    wanted = (_directory(directory), _directory(mount_point))
    return Additions({**encoded, b"etc/rc.local": _RC_LOCAL}, tuple(path for path in wanted if path))


def _mount(path: str) -> str:
    return f"${{ENROOT_ROOTFS}}{path} {path} none x-create=dir,bind,rw,nosuid,nodev\n"


def _export(name: str, value: str) -> str:
    """Return the line that Apptainer runs. Its shell would not take `_quote`'s escaped quote for one (1.4.5)."""
    quoted = value.replace("'", "'\"'\"'")
    return f"export {name}='{quoted}'\n"


def _comments(config: dict[str, object]) -> str:
    lines = []
    for name, value in _mapping(config, "Labels").items():
        if not isinstance(value, str):
            raise InvalidImage("a label in its configuration is malformed")
        lines.append(f"# {name} {value}".replace("\n", " ") + "\n")
    return "".join([*lines, "\n"] if lines else [])


def _rc(directory: str, entrypoint: list[str], command: list[str]) -> str:
    """Return the script that starts the image's program, or in its place another one, by its entry point."""
    entrypoint = [] if entrypoint == [""] else entrypoint  # as Docker has it; enroot writes exec ''
    command = command if entrypoint or command else ["/bin/sh"]
    return _RC.format(
        directory=re.sub(r'["$`\\]', r"\\\g<0>", directory) or "/",
        entrypoint=" ".join(map(_quote, entrypoint)),
        command=" ".join(map(_quote, command)),
    )


def _quote(word: str) -> str:
    return "'" + word.replace("'", "'\\''") + "'"


def _directory(text: str) -> bytes:
    """Return the path of a directory; b"" if it leads out of one."""
    path = path_of(text.encode("utf-8", "replace"))
    return b"" if b".." in path.split(b"/") else path


def _strings(config: dict[str, object], key: str) -> list[str]:
    """Return a list of strings; a string alone is one, which Docker takes, too."""
    value = config.get(key) or []
    strings = [value] if isinstance(value, str) else value
    if not isinstance(strings, list) or not all(isinstance(each, str) and "\0" not in each for each in strings):
        raise InvalidImage(f"{key} in its configuration is malformed")
    return strings


def _mapping(document: dict[str, object], key: str) -> dict[str, object]:
    value = document.get(key) or {}
    if not isinstance(value, dict):
        raise InvalidImage(f"{key} in its configuration is malformed")
    return value
