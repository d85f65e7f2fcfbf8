"""Facts of the node and the job, derived by root, and the name of the namespace that they define. Hot path."""

from __future__ import annotations

import os

from warmstart.errors import ResourceError
from warmstart.lean import Callable, dumps, sha256
from warmstart.profiles import registry
from warmstart.profiles.contract import Fact, Profile

# Part of every namespace. Raise it if entries of older releases must not be seeded any more.
FORMAT = 1
_CPUINFO = "/proc/cpuinfo"
_MODEL = ("vendor_id", "cpu family", "model", "CPU implementer", "CPU part", "CPU variant")  # x86, then ARM
_FLAGS = ("flags", "Features")
_PIECE = 4096
_LONGEST_VERSION = 6  # digits of `gfx_target_version`: two each for major, minor and stepping
_NVIDIA = "/proc/driver/nvidia"
_AMD = "/sys/class/kfd/kfd/topology/nodes"  # of AMD's kernel driver: one directory for each GPU, and for each CPU
NONE = "none"  # neither driver lists a GPU


class FactUnreadable(ResourceError):
    """A file of the kernel or of a driver could not be read, usually because no descriptor was left for it."""

    code = "fact-unreadable"
    template = "cannot tell what this node is: {path}: {problem}"
    hint = "read the reason; mostly a job with many open files"


def derive(profiles: list[Profile], image: str, declared: str = "", cache: str = "") -> dict[str, str]:
    """Return the facts that the profiles name, and always `image` and `cpu`, as root sees them on this node.

    `cache` is the grant's, and a fact unless it is "". Only this and `declared`, the name of the job's declared files,
    come from the job. Raises `FactUnreadable`: a wrong fact would mix the entries of different nodes.
    """
    known: dict[Fact, Callable[[], str]] = {
        "image": lambda: image,
        "cpu": cpu,
        "machine": lambda: os.uname().machine,
        "gpu": gpu,
        "driver": driver,
        "declared": lambda: declared,
    }
    needed: set[Fact] = {"image", "cpu", *(fact for profile in profiles for fact in profile.all_facts)}
    return {fact: known[fact]() for fact in sorted(needed)} | ({"cache": cache} if cache else {})


def gpu(directory: str = _NVIDIA, topology: str = _AMD) -> str:
    """Return the models of this node's NVIDIA GPUs, sorted and joined with `+`, else AMD's as `gfx942`; else `none`.

    An NVIDIA model determines the SM version; of AMD's the kernel lists only the architecture. All GPUs of the node
    count, not only the job's, because Slurm gives a prolog only indexes, whose meaning depends on the site's gres.conf.
    So a node with two models has its own namespaces.
    """
    models = {
        _fields(f"{directory}/gpus/{address}/information").get("Model") for address in _listed(f"{directory}/gpus")
    }
    if not any(models):
        models = {_gfx(f"{topology}/{node}/properties") for node in _listed(topology)}
    return "+".join(sorted("-".join(model.split())[:100] for model in models if model)) or NONE


def _gfx(path: str) -> str:
    """Return the architecture of one node of AMD's topology, `gfx90a` for 90010; "" if it is a CPU."""
    written = _fields(path, " ").get("gfx_target_version", "0")
    if not (written.isascii() and written.isdigit() and len(written) <= _LONGEST_VERSION):
        raise FactUnreadable(path=path, problem=f"gfx_target_version is {written[:20]!a}")
    version = int(written)
    return f"gfx{version // 10_000}{version // 100 % 100:x}{version % 100:x}" if version else ""


def _listed(directory: str) -> list[str]:
    """Return the names in a driver's directory; none if there is no such driver."""
    try:
        return os.listdir(directory)
    except FileNotFoundError:
        return []
    except OSError as error:
        raise FactUnreadable(path=directory, problem=error.strerror) from error


def driver(directory: str = _NVIDIA) -> str:
    """Return the version of this node's NVIDIA kernel driver, e.g. `535.104.05`; `none` if there is none."""
    words = _fields(f"{directory}/version").get("NVRM version", "").split()
    return next((word for word in words if "." in word and word.replace(".", "").isdigit()), NONE)


def cpu(path: str = _CPUINFO) -> str:
    """Return this node's CPU as `<machine>-<16 hex>`, equal on nodes that run the same native code.

    This is a fact because Inductor compiles with `-march=native`, and neither its names nor its checks show that
    (docs/cache-formats.md, Inductor). A library built here may crash elsewhere with illegal instructions. The hash has
    vendor, family and model, for which the compiler tunes, and the flags, because a hypervisor may hide some. Stepping,
    microcode, clock and core count change no instruction and are left out. Only the first CPU is read.
    """
    fields = _fields(path)
    if not fields:
        raise FactUnreadable(path=path, problem="it is empty, or there is none")
    model = [f"{key}={fields[key]}" for key in _MODEL if key in fields]
    flags = sorted({flag for key in _FLAGS for flag in fields.get(key, "").split()})
    digest = sha256("\n".join([*model, *flags]).encode()).hexdigest()
    return f"{os.uname().machine}-{digest[:16]}"


def _fields(path: str, separator: str = ":") -> dict[str, str]:
    """Return the values of a file of the kernel or a driver up to its first empty line, by their keys.

    There are none if there is no such file. Reads only as much as needed: for every core's lines the kernel queries
    that core's clock.
    """
    found = {}
    try:
        with open(path, "rb", buffering=_PIECE) as file:
            for line in file:
                if not line.strip():
                    break
                key, _, value = line.decode("ascii", "replace").partition(separator)
                found[key.strip()] = value.strip()
    except FileNotFoundError:
        pass
    except OSError as error:
        raise FactUnreadable(path=path, problem=error.strerror) from error
    return found


def namespace(profile: Profile, facts: dict[str, str]) -> str:
    """Return the name of the profile's namespace for these facts: 32 lower-case hex digits.

    `facts` must have all facts of the profile, and unless it is relocatable also `path`, where jobs see their
    cache. `cache` counts where it is given, but for declared files, which have a name of their own. Others are ignored.
    Raises `KeyError` if one is missing, because its namespace would mix different jobs. What divides a cache into
    entries counts, too: the same file in two entries would be taken from both.
    Python's ABI is no fact: the image decides it, and tools have it in their own names.
    """
    chosen: dict[str, str] = {name: facts[name] for name in profile.all_facts}
    if profile.relocation != "relocatable":
        chosen["path"] = facts["path"]
    if "cache" in facts and "declared" not in profile.facts:
        chosen["cache"] = facts["cache"]
    nested = [(pattern, list(registry.get(name, [profile]).entries)) for pattern, name in profile.nested.items()]
    divided = [list(profile.entries), profile.never, nested]  # in the order in which patterns count
    named = {"format": FORMAT, "profile": profile.name, "facts": chosen, "divided": divided}
    digest: str = sha256(dumps(named, sort_keys=True, separators=(",", ":")).encode()).hexdigest()
    return digest[:32]
