"""Parser of job_container.conf and namespace.yaml: the mount namespaces that Slurm makes for jobs.

Facts: job_container.conf(5), namespace.yaml(5), read_jcconf.c and read_nsconf.c of Slurm 22.05 to 26.05. NamespaceType
replaced JobContainerType in 25.11, which still takes both. namespace/tmpfs is job_container/tmpfs by another name;
namespace/linux has namespace.yaml.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, NamedTuple

from warmstart.doctor.slurm_conf import SlurmConf, pairs
from warmstart.host.files import read_small

if TYPE_CHECKING:
    from warmstart.policy.document import Plain

LINUX = "namespace/linux"
DEFAULT_DIRS = ("/tmp", "/dev/shm")
LARGEST = 1 << 20
_FIRST = ("nodename", "basepath")  # what follows one of them on its line belongs to it


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


def kind(conf: SlurmConf) -> str:
    """Return the plugin that makes mount namespaces for jobs, `namespace/linux` for example; "" if there is none."""
    plugin = conf.last("NamespaceType") or conf.last("JobContainerType")
    return "" if "none" in plugin.lower() else plugin


def read(conf: SlurmConf) -> Namespaces:
    """Return what the plugin's file says. Raises `PolicyInvalid` if namespace.yaml is no YAML that can be read here."""
    if kind(conf) == LINUX:
        path = conf.sibling("namespace.yaml")
        return _of_yaml(path) if os.path.exists(path) else Namespaces(path, ())
    path = conf.sibling("job_container.conf")
    return _of_lines(path) if kind(conf) and os.path.exists(path) else Namespaces(path, ())


def _of_lines(path: str) -> Namespaces:
    common: dict[str, str] = {}
    lines = []
    for line in pairs(path):
        start = next((at for at, (key, _) in enumerate(line) if key in _FIRST), len(line))
        common.update(line[:start])
        if line[start:]:
            lines.append(dict(line[start:]))
    # Dirs alone count for all nodes wherever they stand; CloneNSScript on a line of its own is parsed and not used.
    nodes = (
        NodeNamespace(line.get("basepath", ""), _split(line.get("dirs") or common.get("dirs") or ""), _script(line))
        for line in lines
    )
    return Namespaces(path, tuple(node for node in nodes if _is_on(node)), _script(common))


def _script(line: dict[str, str]) -> str:
    return line.get("clonensscript", "")


def _is_on(node: NodeNamespace) -> bool:
    return not node.base.lower().startswith("none")  # BasePath=none turns the plugin off on these nodes


def _split(text: str) -> tuple[str, ...]:
    return tuple(word for word in text.split(",") if word)


def _of_yaml(path: str) -> Namespaces:
    from warmstart.policy.document import plain  # loads a YAML library

    content = _mapping(plain(path, read_small(path, LARGEST).decode("utf-8", "replace")))
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
