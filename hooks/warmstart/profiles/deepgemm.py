"""DeepGEMM's cache of compiled kernels (docs/cache-formats.md, DeepGEMM).

`cache/kernel.<name>.<hex>/` holds `kernel.cu` and `kernel.cubin`, with debug options also `kernel.ptx` and
`kernel.sass`. DeepGEMM makes it in `tmp/<uuid>/` and renames it. If one of the first two is missing, jobs fail with an
assertion, so an entry is published only whole.

The hash covers the package's include path and the architecture, but not the compiler's patch level. The image decides
both path and compiler, and it is in the namespace.
"""

from __future__ import annotations

from warmstart.lean import TYPE_CHECKING
from warmstart.profiles.contract import Profile, named_by

if TYPE_CHECKING:
    from warmstart.profiles.entry_files import EntryFiles

_FILE = r"(cache/kernel\.[A-Za-z0-9_]{1,150}\.[0-9a-f]{8,64})/kernel\.(?:cu|cubin|ptx|sass)"


def validate(files: EntryFiles) -> None:
    """Require source and cubin, and a whole cubin.

    Catches: a missing file, a truncated or zeroed cubin. Cannot catch: changed bytes inside the code, a truncated
    source (DeepGEMM uses only its hash, which is in the directory's name).
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
    variables={"DG_JIT_CACHE_DIR": "{dir}"},
    defaults={"DG_JIT_CACHE_DIR": "~/.deep_gemm"},
    relocation="relocatable",
    facts=("image", "gpu"),
    entry_of=named_by(_FILE),  # `cache/kernel.<name>.<hex>` for the files of one kernel
    validate=validate,
    in_step=True,
    experimental=True,
)
