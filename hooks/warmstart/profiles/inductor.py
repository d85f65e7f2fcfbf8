"""PyTorch Inductor and AOTAutograd (docs/cache-formats.md, Inductor; names seen with torch 2.13 on CPU).

Entries, the smallest things that are written and read as a whole:
`fxgraph/<xx>/<key>` and `aotautograd/<key>`: the pickles of one graph, each named after its content;
`<xx>/c<51>`: one generated source and what was built from it, by stem (`.py`; `.cpp` and `.so`; `.main.cpp`
and `.main.so`), where `<xx>` is the second and third letter of the key or stem;
`<xx>/c<51>.optimized.o` and `.main.o`, where kernels are built apart from the C++ wrapper (an option): the
kernel's object lies in its wrapper's directory, its source elsewhere and not needed again;
`<xx>/<64 hex>.best_config`: the tuned parameters of one Triton kernel.

The probes for vector instructions (`VecISA`) are code entries like any other and can't be told apart by
name. They are harvested: each job loads them in a child process before it believes them, and without
them a warm start pays for nearly a dozen compiler runs (docs/profiles.md has the times). They, and all other
libraries, are built with `-march=native` though the names say nothing of it: the namespace has the CPU.

Never harvested: what is not listed here. `locks/`; `*_CxxBuild/`, where the compiler works;
`.<pid>.<tid>.tmp`; `triton/`, another profile's; `cache/` and `dynamo/`, files that jobs rewrite in place, so
that the first publisher's would stay for ever. Precompiled headers are not here at all: torch puts them
below TMPDIR.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from warmstart.profiles.contract import Profile, named_by

if TYPE_CHECKING:
    from warmstart.profiles.entry_files import EntryFiles

_HASH = "[a-z2-7]{51}"
_GRAPH = rf"(fxgraph/([a-z2-7]{{2}})/f(?=\2){_HASH}|aotautograd/a{_HASH})/{_HASH}"
_STEM = rf"([a-z2-7]{{2}})/c(?=\1){_HASH}"
_CODE = rf"(([a-z2-7]{{2}})/c(?=\2){_HASH})\.(?:py|cpp|so|main\.cpp|main\.so|main\.o)"
_ALONE = rf"([a-z2-7]{{2}}/(?:c{_HASH}\.optimized\.o|[0-9a-f]{{64}}\.best_config))"
# A source, and what must be there when its build has ended.
_RESULTS = {".py": ".py", ".cpp": ".so", ".main.cpp": ".main.so"}


def validate(files: EntryFiles) -> None:
    """Prove an entry complete: content hashes where the names are hashes, ELF and JSON structure elsewhere.

    Catches: any change to a graph's pickle or to a generated `.py`; an empty or truncated `.so` or `.o`
    (ImportError or SIGBUS in the job otherwise); a build that was killed before its library. Can't catch:
    changed bytes inside a library's code or data, a truncated `.cpp` (never read again once its library is
    there), other parameters in a `.best_config`. Torch heals none of these by itself.
    """
    from warmstart.profiles.formats import elf, plain, self_hash

    for name in files.names:
        if name.startswith(("fxgraph/", "aotautograd/")):
            self_hash.check_content(files, name)
        elif name.endswith(".py"):
            self_hash.check_source(files, name)
        elif name.endswith(".cpp"):
            plain.check_text(files, name)
        elif name.endswith(".best_config"):
            plain.read_json(files, name)
        else:
            elf.check(files, name, elf.SHARED if name.endswith(".so") else elf.RELOCATABLE)
    if re.fullmatch(_STEM, files.entry):
        _require_results(files)


def _require_results(files: EntryFiles) -> None:
    from warmstart.profiles.entry_files import EntryInvalid

    suffixes = {name[len(files.entry) :] for name in files.names}
    sources = suffixes & _RESULTS.keys()
    if len(sources) != 1 or not {_RESULTS[source] for source in sources} <= suffixes:
        raise EntryInvalid("incomplete")


PROFILE = Profile(
    name="inductor",
    subdir="inductor",
    variables={"TORCHINDUCTOR_CACHE_DIR": "{dir}"},
    relocation="relocatable",
    facts=("image", "cpu"),
    # The stem of generated code, the graph's key directory, or the path of a file alone.
    entry_of=named_by(_CODE, _GRAPH, _ALONE),
    validate=validate,
)
