"""DeepGEMM's cache of compiled kernels (docs/cache-formats.md, DeepGEMM).

`cache/kernel.<name>.<hex>/` holds `kernel.cu` and `kernel.cubin`, with debug options also `kernel.ptx` and
`kernel.sass`; it is made in `tmp/<uuid>/` and renamed. A directory in which one of the two is missing ends the job
with an assertion, so this entry is published whole or not at all.

Its flags hold the include path of the package and the architecture, not the compiler's patch level: the
namespace has the image, which decides both.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from warmstart.profiles.contract import Profile, named_by

if TYPE_CHECKING:
    from warmstart.profiles.entry_files import EntryFiles

_FILE = r"(cache/kernel\.[A-Za-z0-9_]{1,150}\.[0-9a-f]{8,64})/kernel\.(?:cu|cubin|ptx|sass)"


def validate(files: EntryFiles) -> None:
    """Prove that source and cubin are there, and that the cubin is whole.

    Catches: a missing file, a truncated or zeroed cubin. Can't catch: changed bytes inside the code, a source
    that is cut short (only its hash is used, and that is the directory's name).
    """
    from warmstart.profiles.entry_files import EntryInvalid
    from warmstart.profiles.formats import elf, plain

    source, binary = f"{files.entry}/kernel.cu", f"{files.entry}/kernel.cubin"
    if not {source, binary} <= {*files.names}:
        raise EntryInvalid("incomplete")
    elf.check_cubin(files, binary)
    for name in files.names:
        if name != binary:
            plain.check_text(files, name)


PROFILE = Profile(
    name="deepgemm",
    subdir="deepgemm",
    variables={"DG_JIT_CACHE_DIR": "{dir}"},
    relocation="relocatable",
    facts=("image", "gpu"),
    entry_of=named_by(_FILE),  # `cache/kernel.<name>.<hex>` for the files of one kernel
    validate=validate,
)
