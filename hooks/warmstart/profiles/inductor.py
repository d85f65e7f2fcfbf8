"""PyTorch Inductor and AOTAutograd (docs/cache-formats.md, Inductor; names seen with torch 2.13 and 2.15 on CPU).

Entries are the smallest units that are written and read as a whole:
`fxgraph/<xx>/<key>` and `aotautograd/<key>`: the pickles of one graph, each named after its content;
`<xx>/c<51>`: one generated source and what was built from it, by stem (`.py`; `.cpp` and `.so`; `.main.cpp`
and `.main.so`), where `<xx>` is the second and third letter of the key or stem;
`<xx>/c<51>.optimized.o` and `.main.o`: objects of kernels that are built apart from the C++ wrapper (an option). They
are in the wrapper's directory; the kernel's source is elsewhere and not needed again;
`<xx>/<64 hex>.best_config`: the tuned parameters of one Triton kernel;
`helion/<64 hex>.best_config`: Helion's, which lie here unless the job has the profile `helion`.

The probes for vector instructions (`VecISA`) are code entries with names like any other, so they are harvested, too.
That is safe, because each job loads them in a child process before it uses their result. Without them a warm start
needs nearly a dozen compiler runs (docs/reference/profiles.md has the times). All libraries are built with
`-march=native`, which their names do not show; so the CPU is in the namespace.

Repeats: generated sources. Measured with torch 2.13 on CPU, two cold runs at one path and one at another: 5 of 5
sources are the same; 4 of 4 libraries are at the same path, none at another, because it is in them; pickles are not.

Never harvested: `locks/`; `*_CxxBuild/`, where the compiler works; `.<pid>.<tid>.tmp`; `triton/`, which has its own
profile; `cache/` and `dynamo/`, whose files every job rewrites in place, so that each would publish its own;
`<stem>.so.load_ok` (2.15), with which a job would believe a probe that it has not loaded itself; `quack/`, some of
whose names do not say for which GPU they are, and neither does this profile's namespace; `cutedsl_compile_cache/`,
whose names are hashes of this directory's path; `flydsl_compile_cache/`, whose format is not known; and everything else
that is not listed here. Precompiled headers are not in this cache: torch puts them below TMPDIR.
"""

from __future__ import annotations

from warmstart.lean import TYPE_CHECKING
from warmstart.profiles.contract import Profile, named_by

if TYPE_CHECKING:
    from warmstart.profiles.entry_files import EntryFiles

_HASH = "[a-z2-7]{51}"
_GRAPH = rf"(fxgraph/([a-z2-7]{{2}})/f(?=\2){_HASH}|aotautograd/a{_HASH})/{_HASH}"
_STEM = rf"([a-z2-7]{{2}})/c(?=\1){_HASH}"
_CODE = rf"(([a-z2-7]{{2}})/c(?=\2){_HASH})\.(?:py|cpp|so|main\.cpp|main\.so|main\.o)"
_ALONE = rf"([a-z2-7]{{2}}/(?:c{_HASH}\.optimized\.o|[0-9a-f]{{64}}\.best_config))"
_HELION = "helion/"
# Suffix of a source → suffix of the file that exists when its build has ended.
_RESULTS = {".py": ".py", ".cpp": ".so", ".main.cpp": ".main.so"}


def validate(files: EntryFiles) -> None:
    """Check content hashes where names are hashes, ELF and JSON structure elsewhere, and that builds ended.

    Catches: any change to a graph's pickle or to a generated `.py`; an empty or truncated `.so` or `.o` (in the job an
    ImportError or SIGBUS); a build that was killed before its library. Cannot catch: changed bytes inside a library's
    code or data, a truncated `.cpp` (not read again once its library exists), other parameters in a `.best_config`.
    Torch repairs none of these by itself.
    """
    from warmstart.profiles import helion
    from warmstart.profiles.formats import elf, plain, self_hash

    if files.entry.startswith(_HELION):
        helion.check_best(files)
        return
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
    import re

    if re.fullmatch(_STEM, files.entry):
        _require_results(files)


def _require_results(files: EntryFiles) -> None:
    from warmstart.profiles.entry_files import EntryInvalid

    suffixes = {name[len(files.entry) :] for name in files.names}
    sources = suffixes & _RESULTS.keys()
    if len(sources) != 1 or not {_RESULTS[source] for source in sources} <= suffixes:
        raise EntryInvalid("incomplete")


def looked_up(path: str) -> str:
    """Return the generated code whose lock this is, as an entry; "" for another file.

    Measured with torch 2.13 on CPU: each of a warm job's seven locks has its entry. AOTInductor takes these, and one
    for its own wrapper, which is no entry.
    """
    import re

    found = re.fullmatch(r"locks/(c([a-z2-7]{2})[a-z2-7]{49})\.lock", path)
    return f"{found[2]}/{found[1]}" if found else ""


PROFILE = Profile(
    name="inductor",
    variables={
        "TORCHINDUCTOR_CACHE_DIR": "{dir}",
        # With them every job builds 150 MB, also one that compiles nothing (docs/reference/profiles.md has the times).
        "TORCHINDUCTOR_CPP_CACHE_PRECOMPILE_HEADERS": "0",
    },
    defaults={
        "TORCHINDUCTOR_CACHE_DIR": "{TMPDIR:/tmp}/torchinductor_{user}",
        "TORCHINDUCTOR_CPP_CACHE_PRECOMPILE_HEADERS": "1",
    },
    relocation="relocatable",
    facts=("image", "cpu"),
    # The stem of generated code, the key directory of a graph, or the path of a single file.
    entry_of=named_by(_CODE, _GRAPH, _ALONE, rf"({_HELION}[0-9a-f]{{64}}\.best_config)"),
    validate=validate,
    leaves_trace=True,  # a lock for each code that it looks up
    looked_up=looked_up,
    refers_to=("inductor", "triton"),  # a graph its code, an autograd entry its graphs, code its kernels
    in_step=True,
)
