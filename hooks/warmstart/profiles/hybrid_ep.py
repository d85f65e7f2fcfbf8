"""HybridEP's compiled kernels, as NeMo Automodel keeps them (docs/cache-formats.md, HybridEP).

`deep_ep-<version>_cuda-<version>_sm<arch>/<key>.so` is an entry: a library that nvcc built, with the function
`get_function_ptr`. The key is the kernel's parameters, joined by `-`; ranks of a node and nodes are among them.
HybridEP compiles in a directory of each process; local rank 0 copies into this one under a temporary name and renames.
At the start of each rank all libraries here are copied and loaded: one that cannot be loaded ends the job.

Never harvested: `<key>.so.<pid>.tmp`.
"""

from __future__ import annotations

from warmstart.lean import TYPE_CHECKING
from warmstart.profiles.contract import Profile, named_by

if TYPE_CHECKING:
    from warmstart.profiles.entry_files import EntryFiles

_VERSION = r"[A-Za-z0-9_.+!]{1,100}"
_FILE = (
    rf"(deep_ep-{_VERSION}_cuda-[A-Za-z0-9.]{{1,20}}_sm[0-9]{{2,3}}/[A-Za-z0-9_]{{1,40}}(?:-[A-Za-z0-9_]{{1,40}})+\.so)"
)


def validate(files: EntryFiles) -> None:
    """Require a whole library with the function that HybridEP looks for.

    Catches: a truncated file, another library. Cannot catch: changed bytes inside code, a kernel of another key.
    """
    from warmstart.profiles.formats import elf

    elf.check_function(files, files.entry, "get_function_ptr", elf.SHARED)


PROFILE = Profile(
    name="hybrid-ep",
    variables={"NEMO_HYBRIDEP_JIT_CACHE": "{dir}"},
    defaults={"NEMO_HYBRIDEP_JIT_CACHE": ""},  # without a directory Automodel keeps nothing
    relocation="relocatable",
    facts=("image", "gpu", "machine"),
    entry_of=named_by(_FILE),  # the path of one kernel
    validate=validate,
    in_step=True,
)
