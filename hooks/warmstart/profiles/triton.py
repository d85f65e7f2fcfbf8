"""Triton's cache of compiled kernels (docs/cache-formats.md, Triton; tried with Triton 3.1, 3.2, 3.4, 3.7 and 3.9).

`<key>/` is one entry, of one of three kinds:
a kernel: `<k>.json` (metadata), `<k>.cubin` or for AMD's GPUs `<k>.hsaco`, its intermediate representations, and the
group `__grp__<k>.json`, which names the other files and is written last;
a host module: `<m>.cpython-311-x86_64-linux-gnu.so`;
the timings of one autotuner: `<f>.autotune.json`.
The key of a kernel is the hash in its metadata, in an encoding that changed twice.

Since Triton 3.0 the group names its files by absolute path. If it is moved, it is a miss, or Triton reads the files at
the old path if that still exists. So entries need the constant path; one that names its run's own path is refused.

Repeats: all of a kernel but its group, which names paths. Measured with Triton 3.7 for NVIDIA's sm_80 and sm_90, two
cold runs at one path and one at another: 14 of 14 files are the same. Timings differ each time; modules, which the
system's compiler builds, were not measured.

Never harvested: `tmp.pid_*` directories; modules without an ABI in their name (before 3.4, when neither name nor key
depended on the Python version); caches of Triton 2; kernels for other vendors' GPUs, whose files are not copied.
"""

from __future__ import annotations

import posixpath

from warmstart.lean import TYPE_CHECKING
from warmstart.profiles.contract import Profile, named_by

if TYPE_CHECKING:
    from warmstart.profiles.entry_files import EntryFiles

# Base32 since 3.3, URL-safe base64 in 3.2, hexadecimal in 3.0 and 3.1; without padding.
_KEY = r"(?:[A-Z2-7]{52}|[A-Za-z0-9_-]{43}|[0-9a-f]{64})"
_NAME = r"\w{1,150}"
_TEXTS = ("source", "ttir", "ttgir", "llir", "ptx", "amdgcn")
_BINARIES = {"cuda": "cubin", "hip": "hsaco"}  # of each backend; anything else is another vendor's
_KERNEL = rf"(?:__grp__)?{_NAME}\.json|{_NAME}\.(?:{'|'.join((*_TEXTS, *_BINARIES.values()))})"
_MODULE = rf"{_NAME}\.cpython-[0-9]{{2,4}}[a-z]{{0,3}}-[a-z0-9_]{{1,30}}-linux-gnu\.so"
_FILE = rf"({_KEY})/(?:{_KERNEL}|{_MODULE}|{_NAME}\.autotune\.json)"
_GROUP = "__grp__"


def validate(files: EntryFiles) -> None:
    """Require a whole group whose files have one writer and belong to one kernel, or a whole module or timings.

    Catches: a kernel whose writer died; truncated machine code (for Triton a hit); truncated metadata or group (older
    releases crash); files of another kernel or architecture; a file that a second process wrote after the group.
    Cannot catch: changed bytes inside code and text; two writers whose files are all older than the last group; a
    module that was built from another source.
    """
    from warmstart.profiles.entry_files import EntryInvalid
    from warmstart.profiles.formats import elf, plain

    names = [name.rpartition("/")[2] for name in files.names]
    groups = [name for name in names if name.startswith(_GROUP)]
    if groups:
        if len(groups) > 1:
            raise EntryInvalid("unexpected-file")
        _check_kernel(files, groups[0])
    elif len(names) == 1 and names[0].endswith(".so"):
        elf.check(files, files.names[0], elf.SHARED)
    elif len(names) == 1 and names[0].endswith(".autotune.json"):
        plain.check_timings(files, files.names[0])
    else:
        raise EntryInvalid("incomplete")


def _check_kernel(files: EntryFiles, group: str) -> None:
    from warmstart.profiles.entry_files import EntryInvalid
    from warmstart.profiles.formats import elf, plain

    stem = group[len(_GROUP) : -len(".json")]
    _check_vendor(files, stem)
    _check_group(files, group)
    here = {name.rpartition("/")[2] for name in files.names}
    kernel, backend, arch = _check_metadata(files, stem)
    binary = f"{stem}.{_BINARIES[backend]}"
    if binary not in here:
        raise EntryInvalid("incomplete")
    for name in here - {group}:
        if name.rpartition(".")[0] != stem:
            raise EntryInvalid("unexpected-file")
    for kind in _TEXTS:
        if f"{stem}.{kind}" in here:
            plain.check_text(files, f"{files.entry}/{stem}.{kind}")
    if isinstance(arch, str):
        elf.check_hsaco(files, f"{files.entry}/{binary}", arch, kernel)
        return
    if f"{stem}.ptx" in here:
        plain.check_ptx(files, f"{files.entry}/{stem}.ptx", arch, kernel)
    elf.check_cubin(files, f"{files.entry}/{binary}", arch=arch, kernel=kernel)


def _check_vendor(files: EntryFiles, stem: str) -> None:
    """Tell kernels for other vendors' GPUs, whose code is not even copied, from damaged ones."""
    from warmstart.profiles.entry_files import EntryInvalid
    from warmstart.profiles.formats import plain

    path = f"{files.entry}/{stem}.json"
    target = plain.read_json(files, path).get("target") if path in files else None
    backend = target.get("backend") if isinstance(target, dict) else None
    if isinstance(backend, str) and backend not in _BINARIES:
        raise EntryInvalid("other-vendor")


def _check_group(files: EntryFiles, group: str) -> None:
    """Require that the group names exactly the other files, each in a directory of the key's name, but no run's own."""
    from warmstart.profiles.entry_files import EntryInvalid
    from warmstart.profiles.formats import ninja, plain

    path = f"{files.entry}/{group}"
    children = plain.read_json(files, path).get("child_paths")
    if not isinstance(children, dict):
        raise EntryInvalid("field-malformed")
    for name, child in children.items():
        if not isinstance(child, str) or child.split("/")[-2:] != [posixpath.basename(files.entry), name]:
            raise EntryInvalid("field-malformed")
        if ninja.OF_A_RUN.search(child.encode("utf-8", "surrogatepass")):
            raise EntryInvalid("made-elsewhere")
    child_paths = {f"{files.entry}/{name}" for name in children}
    here = {*files.names} - {path}
    if not child_paths <= here:
        raise EntryInvalid("incomplete")
    if child_paths != here:
        raise EntryInvalid("unexpected-file")
    written = files.mtime_ns(path)
    if any(files.mtime_ns(name) > written for name in here):
        raise EntryInvalid("two-writers")


def _check_metadata(files: EntryFiles, stem: str) -> tuple[str, str, int | str]:
    """Return the kernel's name, its backend and its architecture: 90 for sm_90, or `gfx942`."""
    from warmstart.profiles.entry_files import EntryInvalid
    from warmstart.profiles.formats import plain

    if f"{files.entry}/{stem}.json" not in files:
        raise EntryInvalid("incomplete")
    metadata = plain.read_json(files, f"{files.entry}/{stem}.json")
    if posixpath.basename(files.entry) not in _keys(metadata.get("hash")):
        raise EntryInvalid("name-not-hash")
    target = metadata.get("target")
    name = metadata.get("name")
    if not isinstance(target, dict) or not isinstance(name, str) or name[:150] != stem:
        raise EntryInvalid("field-malformed")
    backend, arch = target.get("backend"), target.get("arch")
    numbers = [target.get("warp_size"), metadata.get("shared"), metadata.get("num_warps")]
    if not all(type(number) is int and number >= 0 for number in numbers):
        raise EntryInvalid("field-malformed")
    if not (backend == "hip" and isinstance(arch, str)) and not (backend == "cuda" and type(arch) is int and arch >= 0):
        raise EntryInvalid("field-malformed")
    return name, str(backend), arch


def _keys(digest: object) -> set[str]:
    """Return the directory names that different releases of Triton use for this hash."""
    import base64
    import re

    if not isinstance(digest, str) or not re.fullmatch("[0-9a-f]{64}", digest):
        return set()
    raw = bytes.fromhex(digest)
    letters = [base64.b32encode(raw), base64.urlsafe_b64encode(raw)]
    return {digest, *(text.decode().rstrip("=") for text in letters)}


PROFILE = Profile(
    name="triton",
    variables={"TRITON_CACHE_DIR": "{dir}"},
    defaults={"TRITON_CACHE_DIR": "{TRITON_HOME:~}/.triton/cache"},
    relocation="constant-path",
    facts=("image", "gpu", "machine"),
    entry_of=named_by(_FILE),  # the key directory
    validate=validate,
    in_step=True,
)
