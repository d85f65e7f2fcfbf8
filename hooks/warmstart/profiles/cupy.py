"""CuPy's cache of kernels that NVRTC compiled (docs/cache-formats.md, CuPy).

`<sha1>.cubin` and `<sha1>.ltoir` are entries: the SHA-1 of what follows in 40 hexadecimal digits, then the code, before
which the mangled names of C++ templates may stand. The name is the hash of source, options, architecture and NVRTC's
version. CuPy verifies the hash and compiles again what differs.

Never harvested: `tmp????????` (written and renamed), `<sha1>.cubin.cu` (sources for debuggers), and the files of
releases before 12, whose checksum is an MD5.
"""

from __future__ import annotations

from warmstart.lean import TYPE_CHECKING
from warmstart.profiles.contract import Profile, named_by

if TYPE_CHECKING:
    from warmstart.profiles.entry_files import EntryFiles

_FILE = r"([0-9a-f]{40}\.(?:cubin|ltoir))"


def validate(files: EntryFiles) -> None:
    """Require the SHA-1 that the file begins with.

    Catches every change. Cannot catch: a kernel that belongs to another key.
    """
    from warmstart.profiles.formats import self_hash

    self_hash.check_leading_sha1(files, files.names[0])


PROFILE = Profile(
    name="cupy",
    variables={"CUPY_CACHE_DIR": "{dir}"},
    defaults={"CUPY_CACHE_DIR": "~/.cupy/kernel_cache"},
    relocation="relocatable",
    facts=("image", "gpu"),
    entry_of=named_by(_FILE),  # the path of one kernel
    validate=validate,
)
