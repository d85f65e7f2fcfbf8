"""TileLang's cache of compiled kernels (docs/cache-formats.md, TileLang).

From the source of TileLang 0.1.15; not tried on a GPU.

`<version>/<platform>/kernels/<sha256>/` is one entry: sources, `kernel_lib.so`, `params.json`, and `manifest.json` with
size and SHA-256 of the others. TileLang makes it in `.staging/` and renames it.

Never harvested: `.staging/`, `.<name>.tmp`; results of the autotuner (cloudpickle: code that looks like data); entries
of older releases, which have no manifest.
"""

from __future__ import annotations

from warmstart.lean import TYPE_CHECKING
from warmstart.profiles.contract import Profile, named_by

if TYPE_CHECKING:
    from warmstart.profiles.entry_files import EntryFiles

_NAME = r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,100}"
_KEY = r"[0-9][A-Za-z0-9_.+-]{0,60}/linux-[a-z0-9_]{1,20}/kernels/[0-9a-f]{64}"
_FILE = rf"({_KEY})/{_NAME}\.(?:cu|c|cpp|so|cubin|json|py)"
_MANIFEST = "manifest.json"


def validate(files: EntryFiles) -> None:
    """Require exactly the files of the manifest, byte for byte, and well-formed libraries.

    Catches: any change to a file except the manifest, a missing or additional file. Cannot catch: a manifest that was
    made again for other files.
    """
    from warmstart.profiles.entry_files import EntryInvalid
    from warmstart.profiles.formats import elf, plain, self_hash

    manifest = f"{files.entry}/{_MANIFEST}"
    if manifest not in files.names:
        raise EntryInvalid("incomplete")
    content = plain.read_json(files, manifest)
    listed = content.get("files")
    if content.get("version") != 1 or not isinstance(listed, dict) or not listed:
        raise EntryInvalid("field-malformed")
    here = {name.rpartition("/")[2] for name in files.names} - {_MANIFEST}
    if here != listed.keys():
        raise EntryInvalid("incomplete" if listed.keys() - here else "unexpected-file")
    for name, fields in listed.items():
        if self_hash.size_and_sha256(files, f"{files.entry}/{name}") != _recorded(fields):
            raise EntryInvalid("hash-differs")
        if name.endswith(".so"):
            elf.check(files, f"{files.entry}/{name}", elf.SHARED)


def _recorded(fields: object) -> tuple[object, object]:
    from warmstart.profiles.entry_files import EntryInvalid

    if not isinstance(fields, dict):
        raise EntryInvalid("field-malformed")
    return fields.get("size"), fields.get("sha256")


PROFILE = Profile(
    name="tilelang",
    variables={"TILELANG_CACHE_DIR": "{dir}"},
    defaults={"TILELANG_CACHE_DIR": "~/.tilelang/cache"},
    relocation="relocatable",
    facts=("image", "gpu", "cpu"),
    entry_of=named_by(_FILE),  # `<version>/<platform>/kernels/<sha256>` for the files of one kernel
    validate=validate,
    in_step=True,
    experimental=True,
)
