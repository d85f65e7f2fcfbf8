"""What names a namespace."""

from __future__ import annotations

from pathlib import Path

import pytest

from warmstart.profiles import registry
from warmstart.profiles.facts import cpu, namespace

CPUINFO = """processor\t: 0
vendor_id\t: AuthenticAMD
cpu family\t: 25
model\t\t: 1
model name\t: AMD EPYC 7763 64-Core Processor
stepping\t: 1
cpu MHz\t\t: 2445.404
flags\t\t: fpu sse avx2 vaes

processor\t: 1
flags\t\t: other
"""


def described(tmp_path: Path, text: str) -> str:
    """Return the fact of a node with this /proc/cpuinfo."""
    path = tmp_path / "cpuinfo"
    path.write_text(text)
    return cpu(str(path))


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("2445.404", "3000.001"),
        ("fpu sse avx2 vaes", "vaes avx2 fpu sse"),
        ("stepping\t: 1", "stepping\t: 2"),
        ("flags\t\t: other", "flags\t\t: another"),
    ],
)
def test_what_changes_no_instruction_changes_no_fact(tmp_path: Path, old: str, new: str) -> None:
    """Clock, order of flags, stepping and other cores leave the CPU's fact alone."""
    assert old in CPUINFO
    assert described(tmp_path, CPUINFO.replace(old, new)) == described(tmp_path, CPUINFO)


@pytest.mark.parametrize(
    ("old", "new"), [(" avx2", ""), ("family\t: 25", "family\t: 26"), ("AuthenticAMD", "GenuineIntel")]
)
def test_what_native_code_depends_on_changes_the_fact(tmp_path: Path, old: str, new: str) -> None:
    """A missing flag, another family or vendor is another CPU."""
    assert described(tmp_path, CPUINFO.replace(old, new)) != described(tmp_path, CPUINFO)


def test_this_node_has_a_stable_fact() -> None:
    """The real /proc/cpuinfo gives the same short ASCII word each time."""
    assert cpu() == cpu()
    assert cpu().replace("-", "").replace("_", "").isalnum()


def test_a_namespace_differs_where_any_fact_differs() -> None:
    """Profile and each fact count; what the profile does not name does not."""
    numba, inductor = registry.get("numba"), registry.get("inductor")
    facts = {"image": "sha256:1", "cpu": "x86_64-1"}
    names = {
        namespace(numba, facts),
        namespace(inductor, facts),
        namespace(numba, {**facts, "image": "sha256:2"}),
        namespace(numba, {**facts, "cpu": "x86_64-2"}),
    }
    assert len(names) == 4
    assert namespace(numba, {**facts, "driver": "1"}) == namespace(numba, dict(reversed(facts.items())))
    assert all(len(name) == 32 and int(name, 16) for name in names)


def test_a_namespace_without_a_fact_is_refused() -> None:
    """Entries that must not mix never share a namespace for want of a fact."""
    with pytest.raises(KeyError):
        namespace(registry.get("numba"), {"image": "sha256:1"})
