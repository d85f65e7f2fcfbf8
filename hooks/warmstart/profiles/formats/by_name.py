"""Check a file in a format that a policy names. docs/reference/profiles.md says what each check covers."""

from __future__ import annotations

from warmstart.profiles.entry_files import EntryFiles, EntryInvalid
from warmstart.profiles.formats import plain

_LONGEST_SIDECAR = 4096
_DIGITS = 64


def check(kind: str, files: EntryFiles, name: str) -> None:
    """Check a file in a format of `policy.values.Format`, and load what this one needs. Raises `EntryInvalid`."""
    match kind:
        case "any":
            with files.open(name):
                pass
        case "json":
            plain.check_json(files, name)
        case "not-empty":
            plain.check_not_empty(files, name)
        case "text":
            plain.check_text(files, name)
        case "written":
            plain.check_written(files, name)
        case "compressed":
            from warmstart.profiles.formats import compressed

            compressed.check(files, name, least=1)
        case "cubin" | "library" | "object":
            _check_elf(kind, files, name)
        case "pickle":
            from warmstart.profiles.formats import pickle_framing

            pickle_framing.check(files, name, pickles=1)
        case "sha256-name":
            from warmstart.profiles.formats import self_hash

            self_hash.check_hex_name(files, name)
        case _:
            raise ValueError(f"no format {kind!r}")


def _check_elf(kind: str, files: EntryFiles, name: str) -> None:
    from warmstart.profiles.formats import elf

    if kind == "cubin":
        elf.check_cubin(files, name)
    else:
        elf.check(files, name, elf.SHARED if kind == "library" else elf.RELOCATABLE)


def check_sidecar(files: EntryFiles, name: str) -> None:
    """Compare `NAME.sha256`, in the format of sha256sum(1), with the file NAME beside it. Raises `EntryInvalid`."""
    from warmstart.profiles.formats import self_hash

    described = name.removesuffix(".sha256")
    if described not in files:
        raise EntryInvalid("incomplete")
    digest = files.read(name, _LONGEST_SIDECAR)[:_DIGITS].decode("ascii", "replace").lower()
    if digest != self_hash.size_and_sha256(files, described).sha256:
        raise EntryInvalid("hash-differs")
