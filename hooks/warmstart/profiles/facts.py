"""What a namespace must contain, as root derives it on the node, and the namespace's name.

Hot path; hashlib is imported where it is used.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable

from warmstart.profiles.contract import Fact, Profile

# Part of every namespace: raise it when entries of an older release must not be seeded any more.
FORMAT = 1
_CPUINFO = "/proc/cpuinfo"
_MODEL = ("vendor_id", "cpu family", "model", "CPU implementer", "CPU part", "CPU variant")  # x86, then ARM
_FLAGS = ("flags", "Features")
_PIECE = 4096
_NVIDIA = "/proc/driver/nvidia"
_SMALL = 64 << 10  # no file there is larger
NONE = "none"  # no GPU that NVIDIA's driver has


def derive(profiles: list[Profile], image: str, declared: str = "") -> dict[str, str]:
    """Return `image` and `cpu`, and what else the profiles name, as root sees it on this node.

    Nothing comes from the job but `declared`, the name that it gives its files: `/proc/driver/nvidia` is the
    driver's own.
    """
    known: dict[Fact, Callable[[], str]] = {
        "image": lambda: image,
        "cpu": cpu,
        "machine": machine,
        "gpu": gpu,
        "driver": driver,
        "declared": lambda: declared,
    }
    needed: set[Fact] = {"image", "cpu", *(fact for profile in profiles for fact in profile.facts)}
    return {fact: known[fact]() for fact in sorted(needed)}


def machine() -> str:
    """Return the instruction set that ELF files of this node are for: `x86_64`, `aarch64`."""
    return os.uname().machine


def gpu(directory: str = _NVIDIA) -> str:
    """Return the models of this node's NVIDIA GPUs, sorted, joined with `+`; `none` where there is none.

    The model decides the SM. All GPUs of the node count, not only the job's: Slurm gives a prolog indexes, and
    what they mean depends on the site's gres.conf. So a node of two models has a namespace of its own.
    """
    models = set()
    try:
        addresses = os.listdir(f"{directory}/gpus")
    except OSError:
        return NONE
    for address in addresses:
        for line in _text(f"{directory}/gpus/{address}/information").splitlines():
            key, _, value = line.partition(":")
            if key.strip() == "Model":
                models.add(_word(value))
    return "+".join(sorted(models)) or NONE


def driver(directory: str = _NVIDIA) -> str:
    """Return the version of this node's NVIDIA kernel driver, `535.104.05`; `none` where there is none."""
    for line in _text(f"{directory}/version").splitlines():
        if line.startswith("NVRM version:"):
            for word in line.split():
                if "." in word and word.replace(".", "").isdigit():
                    return word
    return NONE


def _word(value: str) -> str:
    return "-".join(value.split())[:100]


def _text(path: str) -> str:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return ""
    try:
        return os.read(fd, _SMALL).decode("ascii", "replace")
    except OSError:
        return ""
    finally:
        os.close(fd)


def cpu(path: str = _CPUINFO) -> str:
    """Return this node's CPU as `<machine>-<16 hex>`, the same on nodes that run the same native code.

    Why: Inductor compiles with `-march=native` and neither says so in its names nor checks it
    (docs/cache-formats.md, Inductor), so a library built here may be illegal instructions elsewhere. Vendor,
    family and model are in because the compiler tunes for them; flags because a hypervisor hides some;
    stepping, microcode, clock and core count are not, they change no instruction. The first CPU
    speaks for all. `OSError` where there is no /proc.
    """
    import hashlib

    fields = {}
    for line in _first_block(path).splitlines():
        key, _, value = line.partition(":")
        fields[key.strip()] = value.strip()
    model = [f"{key}={fields[key]}" for key in _MODEL if key in fields]
    flags = sorted({flag for key in _FLAGS for flag in fields.get(key, "").split()})
    digest = hashlib.sha256("\n".join([*model, *flags]).encode()).hexdigest()
    return f"{os.uname().machine}-{digest[:16]}"


def _first_block(path: str) -> str:
    # Piece by piece: the kernel asks each core for its clock when its lines are read.
    text = b""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        while b"\n\n" not in text and (piece := os.read(fd, _PIECE)):
            text += piece
    finally:
        os.close(fd)
    return text.partition(b"\n\n")[0].decode("ascii", "replace")


def namespace(profile: Profile, facts: dict[str, str]) -> str:
    """Return the namespace of `profile` under `facts`: 32 lower-case hex letters.

    `facts` has all facts of the profile, and `path`, where jobs see their cache, if entries are of use only there;
    others are ignored. `KeyError` if one is missing: a namespace without it would mix jobs that differ in it. Python's
    ABI is not among them: the image decides it, and tools have it in their own names.
    """
    import hashlib

    chosen: dict[str, str] = {name: facts[name] for name in profile.facts}
    if profile.relocation == "constant-path":
        chosen["path"] = facts["path"]
    canonical = json.dumps(
        {"format": FORMAT, "profile": profile.name, "facts": chosen},
        sort_keys=True,
        separators=(",", ":"),
    )
    return hashlib.sha256(canonical.encode()).hexdigest()[:32]
