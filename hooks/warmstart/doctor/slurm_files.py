r"""Reader of what Slurm has in files of a node, and slurmctld tells nobody: its plugins, and jobs' mount namespaces.

plugstack.conf, job_container.conf and namespace.yaml lie beside slurm.conf. In the first two `#` starts a comment
unless escaped, `\` continues a line, and `include` is relative to the file's directory. Facts: spank(8),
job_container.conf(5), namespace.yaml(5), read_jcconf.c and read_nsconf.c of Slurm 22.05 to 26.05. NamespaceType
replaced JobContainerType in 25.11, which still takes both. namespace/tmpfs is job_container/tmpfs by another name;
namespace/linux has namespace.yaml.
"""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

from warmstart.host.files import read_small

if TYPE_CHECKING:
    from warmstart.policy.document import Plain

CONF = "slurm.conf"
PLACES = ("/etc/slurm", "/run/slurm/conf")  # the second in configless mode
LINUX = "namespace/linux"
DEFAULT_DIRS = ("/tmp", "/dev/shm")
DEEPEST = 8
LARGEST = 4 << 20  # characters
# A key begins where a word does, or a long word would be tried from each of its characters.
_PAIR = re.compile(r"""(?<![^\s=])([^\s=]+)\s*=\s*("[^"]*"|'[^']*'|\S*)""")
_FIRST = ("nodename", "basepath")  # what follows one of them on its line belongs to it


class Plugin(NamedTuple):
    """One line of plugstack.conf."""

    path: str
    arguments: tuple[str, ...]
    required: bool = False  # without it srun, sbatch and the steps end with an error

    @property
    def name(self) -> str:
        """The file's name."""
        return os.path.basename(self.path)

    def argument(self, key: str) -> str:
        """Return the value of the last KEY=VALUE argument, or ""."""
        values = [text.partition("=")[2] for text in self.arguments if text.startswith(f"{key}=")]
        return values[-1] if values else ""


class NodeNamespace(NamedTuple):
    """What Slurm does on some nodes: one line of job_container.conf, or one element of node_confs."""

    base: str  # BasePath, "" if there is none
    dirs: tuple[str, ...]  # that each job has for its own, () for DEFAULT_DIRS
    script: str  # CloneNSScript, "" if there is none


class Namespaces(NamedTuple):
    """All that the file says, and its path. `ignored`: CloneNSScript is where Slurm reads and ignores it."""

    path: str
    nodes: tuple[NodeNamespace, ...]
    ignored: str = ""


def directory(prefix: str = "", told: str = "") -> str:
    """Return the directory of this node's slurm.conf: $SLURM_CONF's, that of the path `told`, or a usual one of Slurm.

    Built without --sysconfdir, Slurm has its own at PREFIX/etc (configure --help).
    """
    given = [os.path.dirname(path) for path in (os.environ.get("SLURM_CONF", ""), told) if path]
    places = [*given, *([f"{prefix}/etc"] if prefix else []), *PLACES]
    return next((place for place in places if os.path.exists(f"{place}/{CONF}")), places[0])


def plugins(path: str) -> list[Plugin]:
    """Return plugstack.conf's plugins in order, [] if there is no such file.

    Raises `OSError` if it cannot be read, or what it includes.
    """
    return list(_plugins(path, 0)) if os.path.exists(path) else []


def _plugins(path: str, depth: int) -> Iterator[Plugin]:
    if depth > DEEPEST:
        return
    for line in _joined(path):
        words = line.split()
        if words[0].lower() == "include" and len(words) > 1:
            for included in sorted(glob.glob(os.path.join(os.path.dirname(path), words[1]))):
                yield from _plugins(included, depth + 1)
        elif words[0].lower() in ("required", "optional") and len(words) > 1:
            yield Plugin(words[1], tuple(words[2:]), words[0].lower() == "required")


def namespaces(kind: str, conf: str) -> Namespaces:
    """Return what the file of a plugin for mount namespaces says, in the directory `conf` of slurm.conf.

    Raises `OSError`, and `PolicyInvalid` if namespace.yaml is no YAML that can be read here.
    """
    if kind == LINUX:
        path = f"{conf}/namespace.yaml"
        return _of_yaml(path) if os.path.exists(path) else Namespaces(path, ())
    path = f"{conf}/job_container.conf"
    return _of_lines(path) if kind and os.path.exists(path) else Namespaces(path, ())


def _of_lines(path: str) -> Namespaces:
    common: dict[str, str] = {}
    lines = []
    for text in _joined(path):
        line = [(key.lower(), value.strip("\"'")) for key, value in _PAIR.findall(text)]
        start = next((at for at, (key, _) in enumerate(line) if key in _FIRST), len(line))
        common.update(line[:start])
        if line[start:]:
            lines.append(dict(line[start:]))
    # Dirs alone count for all nodes wherever they stand; CloneNSScript on a line of its own is parsed and not used.
    nodes = [
        NodeNamespace(
            line.get("basepath", ""), _split(line.get("dirs") or common.get("dirs", "")), line.get("clonensscript", "")
        )
        for line in lines
    ]
    return Namespaces(path, tuple(node for node in nodes if _is_on(node)), common.get("clonensscript", ""))


def _is_on(node: NodeNamespace) -> bool:
    return not node.base.lower().startswith("none")  # BasePath=none turns the plugin off on these nodes


def _split(text: str) -> tuple[str, ...]:
    return tuple(word for word in text.split(",") if word)


def _of_yaml(path: str) -> Namespaces:
    from warmstart.policy.document import Document  # loads a YAML library

    text = read_small(path, LARGEST).decode("utf-8", "replace")
    content = _mapping(Document([(path, text)]).data)
    common = _mapping(content.get("defaults"))
    confs = [_mapping(element).get("options") for element in _sequence(content.get("node_confs"))]
    options = [{**common, **_mapping(conf)} for conf in confs] or [common]
    nodes = (
        NodeNamespace(_text(each.get("base_path")), _dirs(each), _text(each.get("clone_ns_script"))) for each in options
    )
    return Namespaces(path, tuple(node for node in nodes if _is_on(node)))


def _dirs(options: dict[str, Plain]) -> tuple[str, ...]:
    confs = [_text(_mapping(conf).get("path")) for conf in _sequence(options.get("dir_confs"))]
    return tuple(confs) or _split(_text(options.get("dirs")))


def _mapping(value: Plain) -> dict[str, Plain]:
    return value if isinstance(value, dict) else {}


def _sequence(value: Plain) -> list[Plain]:
    return value if isinstance(value, list) else []


def _text(value: Plain) -> str:
    return value if isinstance(value, str) else ""


def _joined(path: str) -> Iterator[str]:
    """Yield non-empty lines without comments, with continued lines joined. A line ends at a NUL, as in C."""
    with open(path, encoding="utf-8", errors="replace") as file:
        text = re.sub(r"\0[^\n]*", "", file.read(LARGEST))
    for line in text.replace("\\\n", "").splitlines():
        bare = re.sub(r"(?<!\\)#.*", "", line).strip().replace("\t", " ")
        if bare:
            yield bare
