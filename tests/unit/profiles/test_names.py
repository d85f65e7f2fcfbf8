"""Which names belong to which entry; names are the job owner's."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.profiles.samples import NUMBA_BASE, STEM
from warmstart.profiles import registry

KEY = "ab" + "c" * 49
HASH = "d" * 51

ENTRIES = {
    "numba": {
        f"{NUMBA_BASE}.nbi": NUMBA_BASE,
        f"{NUMBA_BASE}.1.nbc": NUMBA_BASE,
        f"{NUMBA_BASE}.12.nbc": NUMBA_BASE,
        f"_{'0' * 40}/guf-m.gu-2.py313t.nbi": f"_{'0' * 40}/guf-m.gu-2.py313t",
        f"x_{'0' * 40}/m.f-1.py311.1.py311.nbi": None,
        f"{NUMBA_BASE}.nbi.tmp.0123456789abcdef": None,
        f"deeper/{NUMBA_BASE}.nbi": None,
        "mod.f-1.py311.nbi": None,
    },
    "inductor": {
        f"fxgraph/ab/f{KEY}/{HASH}": f"fxgraph/ab/f{KEY}",
        f"aotautograd/a{KEY}/{HASH}": f"aotautograd/a{KEY}",
        f"{STEM}.py": STEM,
        f"{STEM}.cpp": STEM,
        f"{STEM}.so": STEM,
        f"{STEM}.main.cpp": STEM,
        f"{STEM}.main.so": STEM,
        f"zz/c{HASH}.optimized.o": f"zz/c{HASH}.optimized.o",
        f"zz/{'0' * 64}.best_config": f"zz/{'0' * 64}.best_config",
        f"zz/c{HASH}.py": None,
        f"fxgraph/zz/f{KEY}/{HASH}": None,
        f"fxgraph/ab/f{KEY}/.77.88.tmp": None,
        f"aotautograd/a{KEY}/entry": None,
        f"locks/c{HASH}.lock": None,
        f"uk/{STEM[3:]}_CxxBuild/x.o": None,
        "triton/0/KEY/k.cubin": None,
        "precompiled_headers/x.h.gch": None,
        "dynamo/code_state_x.pkl": None,
    },
}
CASES = [(tool, path, entry) for tool, cases in ENTRIES.items() for path, entry in cases.items()]


@pytest.mark.parametrize(("tool", "path", "entry"), CASES)
def test_an_entry_is_the_smallest_thing_that_is_published_whole(tool: str, path: str, entry: str | None) -> None:
    """Real names of both tools map to their entry, all others to none."""
    assert registry.get(tool).entry_of(path) == entry


@pytest.mark.parametrize("spoil", ["{}\n", "\n{}", " {}", "../{}", "./{}", "/{}", "{}/", "{}\udcff", "{}\0", "é{}"])
@pytest.mark.parametrize(("tool", "path", "entry"), [case for case in CASES if case[2]])
def test_a_hostile_name_around_a_good_one_belongs_nowhere(spoil: str, tool: str, path: str, entry: str) -> None:
    """Newlines, dots, other directories and bytes outside ASCII are never harvested."""
    assert registry.get(tool).entry_of(spoil.format(path)) is None


@given(st.sampled_from(registry.names()), st.text())
def test_any_text_is_answered(tool: str, path: str) -> None:
    """No string raises, and an entry's name never leaves the profile's directory."""
    entry = registry.get(tool).entry_of(path)
    assert entry is None or (entry.isascii() and path.startswith(entry) and ".." not in entry.split("/"))


@given(st.data())
def test_a_name_near_a_real_one_stays_inside_its_entry(data: st.DataObject) -> None:
    """What one changed character leaves valid still starts with the entry that it names."""
    tool, path, _ = data.draw(st.sampled_from([case for case in CASES if case[2]]))
    at = data.draw(st.integers(0, len(path) - 1))
    changed = path[:at] + data.draw(st.characters()) + path[at + 1 :]
    entry = registry.get(tool).entry_of(changed)
    assert entry is None or (changed.isascii() and changed.startswith(entry) and entry.count("/") <= 2)
