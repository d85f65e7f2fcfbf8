"""NVIDIA Warp's cache of compiled modules (docs/cache-formats.md, Warp).

`<version>/wp_<module>_<7 hex>/` is one entry: the generated source (`.cpp`, `.cu`), what was compiled from it for each
target (`.cpu<8 hex>.o`, `.sm<arch>.cubin` or `.ptx`), and `.meta`, the kernels' shared memory as JSON. Warp makes the
directory beside and renames it; a process that comes later moves single files into it.

The seven digits are all that Warp compares: of many users' modules two would soon have the same. So entries are seeded
and published in the user's own scope alone.

Never harvested: `…_p<pid>_t<thread>/` (work in progress), `lto/`, precompiled headers, and modules that are named
without a hash (`strip_hash`).
"""

from __future__ import annotations

from warmstart.lean import TYPE_CHECKING
from warmstart.profiles.contract import Profile, named_by

if TYPE_CHECKING:
    from warmstart.profiles.entry_files import EntryFiles

_MODULE = r"wp_[^/]{1,200}_[0-9a-f]{7}"
_TARGET = r"(?:cpu[0-9a-f]{8}\.o|o|sm[0-9]{2,3}[af]?\.(?:cubin|ptx))"
_FILE = rf"([0-9][A-Za-z0-9_.+-]{{0,60}}/({_MODULE}))/\2\.(?:cpp|cu|meta|{_TARGET})"


def validate(files: EntryFiles) -> None:
    """Require the module's metadata and code for at least one target, each whole and for the target of its name.

    Catches: a missing or truncated file, code for another GPU. Cannot catch: changed bytes inside code or PTX; a module
    that another source was compiled to.
    """
    import re

    from warmstart.profiles.entry_files import EntryInvalid
    from warmstart.profiles.formats import elf, plain

    stem = f"{files.entry}/{files.entry.rpartition('/')[2]}"
    meta = plain.read_json(files, f"{stem}.meta") if f"{stem}.meta" in files else None
    if meta is None or not any(name.endswith((".o", ".cubin", ".ptx")) for name in files.names):
        raise EntryInvalid("incomplete")
    if not all(type(value) is int for name, value in meta.items() if name.endswith("_smem_bytes")):
        raise EntryInvalid("field-malformed")
    for name in files.names:
        target = re.search(r"\.sm([0-9]{2,3})[af]?\.", name[len(stem) :])
        if name.endswith(".o"):
            elf.check(files, name, elf.RELOCATABLE)
        elif name.endswith(".cubin") and target:
            elf.check_cubin(files, name, arch=int(target[1]))
        elif name.endswith(".ptx") and target:
            plain.check_ptx(files, name, int(target[1]))
        elif not name.endswith(".meta"):
            plain.check_text(files, name)


PROFILE = Profile(
    name="warp",
    variables={"WARP_CACHE_PATH": "{dir}"},
    defaults={"WARP_CACHE_PATH": "{XDG_CACHE_HOME:~/.cache}/warp"},
    relocation="relocatable",
    facts=("image", "gpu", "cpu"),
    entry_of=named_by(_FILE),  # `<version>/wp_<module>_<7 hex>` for the files of one module
    validate=validate,
    user_scope=True,
)
