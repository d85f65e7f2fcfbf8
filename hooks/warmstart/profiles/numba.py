"""Numba's cache of compiled functions (docs/cache-formats.md, Numba).

`<parent>_<sha1 of the source directory>/<module>.<function>-<line>.py<abi>.nbi` is the index of one function,
`….<n>.nbc` its compiled signatures. A generalized ufunc has a second index, `guf-<module>…`, of the wrappers that
NumPy calls. A wrapper is found by the kernel's mangled name, which has a counter of the process in it: with another
process's kernel the look-up gives a null pointer, and the job dies. So all files of one function are one entry, and
the validator proves that they belong together.

The index is written before the data and both are renamed into place; temporary names end in `.tmp.<16 hex>`.

Repeats: nothing. Measured with Numba 0.68: two cold runs of one program give the same bytes, also at other paths. But
mangled names have a counter of the process in them, and types their number: where other functions are compiled first,
all data files differ, and an index of arrays.

numba-cuda (seen: 0.30) keeps the kernels of `cuda.jit(cache=True)` the same way; its key has the compute capability.
`<stem>.lcs`, an empty file, marks kernels that depend on how they are launched: without it they are compiled again.

Nothing is locked, so ranks that compile at once take directories of their own, `rank_<n>/`, in which all is the same
(docs/reference/profiles.md, Ranks of one node).

The namespace needs the CPU although Numba's own key has it: the index is one file per function, and the
first publisher's would otherwise keep every other CPU model cold.
"""

from __future__ import annotations

from warmstart.lean import TYPE_CHECKING
from warmstart.profiles.contract import Profile

if TYPE_CHECKING:
    from warmstart.profiles.entry_files import EntryFiles

# Both parts begin with a name that users choose: a directory's, and a module's with the function's qualified name.
# The line and the ABI end the stem. More than one `guf-` is a module whose own name begins so: its kernel and its
# wrapper come together, with those of its namesake without.
_DIRECTORY = r"((?:rank_[0-9]{1,6}/)?[^/]*_[0-9a-f]{40}/)"
_FILE = rf"{_DIRECTORY}(?:guf-)*([^/]+-[0-9]{{1,9}}\.py[0-9]{{2,4}}[a-z]{{0,3}})\.(?:nbi|[0-9]{{1,9}}\.nbc)"


def entry_of(path: str) -> str | None:
    """Return `<directory>/<module>.<function>-<line>.py<abi>` for an index or a data file, of wrappers, too."""
    import re  # not needed by callers that only read the variables

    match = re.fullmatch(_FILE, path)
    return match[1] + match[2] if match else None


def validate(files: EntryFiles) -> None:
    """Prove that index and data are whole, that they belong together, and that their machine code can be linked.

    Catches: any truncation, a zeroed tail, a changed length, opcode or stack order; a function whose
    writer died between the index and the data, or between kernel and wrapper; kernels and wrappers, or keys and
    data, of two processes; code that calls what no file of the entry defines, or is of a module that no import finds.
    Can't catch: changed bytes inside a string or inside the machine code, which Numba loads silently (the bundle's
    SHA-256 guards those from harvest on); a source stamp, or values of a closure, that belong to something else; a
    library that the module no longer loads.
    """
    from warmstart.profiles.formats import numba_files

    numba_files.check(files)


PROFILE = Profile(
    name="numba",
    variables={"NUMBA_CACHE_DIR": "{dir}"},
    defaults={"NUMBA_CACHE_DIR": ""},  # __pycache__ beside each source
    relocation="relocatable",
    facts=("image", "cpu"),
    entry_of=entry_of,
    validate=validate,
    leaves_trace=True,  # it tries whether it can write beside the index
    revision=3,  # 1 published kernels and wrappers apart, 2 functions of modules that no import finds
)
