"""Check a file in a format that a policy names. docs/reference/profiles.md says what each check covers."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from warmstart.profiles.entry_files import EntryFiles, EntryInvalid
from warmstart.profiles.formats import compressed, elf, pickle_framing, plain, self_hash

_LONGEST_SIDECAR = 4096
_DIGITS = 64


def _any(files: EntryFiles, name: str) -> None:
    with files.open(name):
        pass


CHECKS: dict[str, Callable[[EntryFiles, str], object]] = {  # `policy.schema.Format` has the same names
    "any": _any,
    "compressed": partial(compressed.check, least=1),
    "cubin": elf.check_cubin,
    "json": plain.check_json,
    "library": partial(elf.check, kind=elf.SHARED),
    "not-empty": plain.check_not_empty,
    "object": partial(elf.check, kind=elf.RELOCATABLE),
    "pickle": partial(pickle_framing.check, pickles=1),
    "sha256-name": self_hash.check_hex_name,
    "text": plain.check_text,
    "written": plain.check_written,
}


def check(kind: str, files: EntryFiles, name: str) -> None:
    """Check a file in the format `kind`, one of `CHECKS`. Raises `EntryInvalid`."""
    CHECKS[kind](files, name)


def check_sidecar(files: EntryFiles, name: str) -> None:
    """Compare `NAME.sha256`, in the format of sha256sum(1), with the file NAME beside it. Raises `EntryInvalid`."""
    described = name.removesuffix(".sha256")
    if described not in files:
        raise EntryInvalid("incomplete")
    digest = files.read(name, _LONGEST_SIDECAR)[:_DIGITS].decode("ascii", "replace").lower()
    if digest != self_hash.size_and_sha256(files, described).sha256:
        raise EntryInvalid("hash-differs")
