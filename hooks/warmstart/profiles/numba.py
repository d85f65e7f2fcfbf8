"""Numba's cache of compiled CPU functions (docs/cache-formats.md, Numba).

`<parent>_<sha1 of the source directory>/<module>.<function>-<line>.py<abi>.nbi` is the index of one
function, `….<n>.nbc` its compiled signatures. One function's files are one entry: the index names the
others, so files of two jobs never mix. The index is written before the data and both are renamed into
place; temporary names end in `.tmp.<16 hex>`.

The namespace needs the CPU although Numba's own key has it: the index is one file per function, and the
first publisher's would otherwise keep every other CPU model cold.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from warmstart.profiles.contract import Profile, named_by

if TYPE_CHECKING:
    from warmstart.profiles.entry_files import EntryFiles

# The directory's name starts with what the source directory is called. A function's qualified name may
# hold dots and, of `<locals>` and `<lambda>`, what is between the brackets. The line and the ABI
# end the stem, so that a name has one reading.
_DIRECTORY = r"[A-Za-z0-9_.+-]{0,200}_[0-9a-f]{40}"
_FUNCTION = r"[A-Za-z0-9_.+-]{1,200}-[0-9]{1,9}\.py[0-9]{2,4}[a-z]{0,3}"
_FILE = rf"({_DIRECTORY}/{_FUNCTION})\.(?:nbi|[0-9]{{1,9}}\.nbc)"


def validate(files: EntryFiles) -> None:
    """Prove that index and data are whole pickles, and that every data file which the index names is here.

    Catches: any truncation, a zeroed tail, a changed length, opcode or stack order; a function whose
    writer died between the index and the data. Can't catch: changed bytes inside a string or inside
    the machine code, which Numba loads silently (the bundle's SHA-256 guards those from harvest on);
    a key or a source stamp that belongs to something else.
    """
    from warmstart.profiles.entry_files import EntryInvalid
    from warmstart.profiles.formats import pickle_framing

    index = f"{files.entry}.nbi"
    data = [name for name in files.names if name != index]
    if index not in files.names or not data:
        raise EntryInvalid("incomplete")
    data_names = pickle_framing.check(files, index, pickles=2, collect=".nbc")
    here = {name.rpartition("/")[2] for name in data}
    if not data_names or not data_names <= here:
        raise EntryInvalid("incomplete")
    for name in data:
        pickle_framing.check(files, name, pickles=1)


PROFILE = Profile(
    name="numba",
    subdir="numba",
    variables={"NUMBA_CACHE_DIR": "{dir}"},
    relocation="relocatable",
    facts=("image", "cpu"),
    entry_of=named_by(_FILE),  # `<directory>/<module>.<function>-<line>.py<abi>` for an index or a data file
    validate=validate,
)
