"""What names a namespace: facts of the node and the job."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from warmstart.profiles import registry
from warmstart.profiles.facts import FactUnreadable, cpu, derive, driver, gpu, namespace

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
NUMBA = registry.get("numba")
FACTS = {"image": "sha256:1", "cpu": "x86_64-1"}


@pytest.mark.parametrize(
    ("old", "new", "is_same"),
    [
        ("2445.404", "3000.001", True),
        ("fpu sse avx2 vaes", "vaes avx2 fpu sse", True),
        ("stepping\t: 1", "stepping\t: 2", True),
        ("flags\t\t: other", "flags\t\t: another", True),
        (" avx2", "", False),
        ("family\t: 25", "family\t: 26", False),
        ("AuthenticAMD", "GenuineIntel", False),
    ],
)
def test_a_cpu_is_what_native_code_depends_on(tmp_path: Path, old: str, new: str, is_same: bool) -> None:
    assert old in CPUINFO
    (tmp_path / "one").write_text(CPUINFO)
    (tmp_path / "other").write_text(CPUINFO.replace(old, new))
    assert (cpu(str(tmp_path / "one")) == cpu(str(tmp_path / "other"))) is is_same


def with_gpus(driver: Path, *models: str) -> None:
    for number, model in enumerate(models):
        directory = driver / f"gpus/0000:{number:02x}:00.0"
        directory.mkdir(parents=True)
        (directory / "information").write_text(
            f"Model: \t\t {model}\nIRQ:   \t\t {number}\nGPU UUID: \t GPU-{number}\n"
        )


def with_amd(topology: Path, *versions: str) -> None:
    """Have a kernel list CPUs and AMD's GPUs with these versions."""
    for number, version in enumerate(versions):
        (topology / str(number)).mkdir(parents=True)
        line = f"gfx_target_version {version}\n" if version else ""
        (topology / str(number) / "properties").write_text(f"cpu_cores_count 0\n{line}vendor_id 4098\n")


@pytest.mark.parametrize(
    ("nvidia", "amd", "fact"),
    [
        (["NVIDIA H200"], [], "NVIDIA-H200"),
        (["NVIDIA H200"] * 8, [], "NVIDIA-H200"),  # of which a pod may see some
        (["NVIDIA H200", "NVIDIA A100-SXM4-40GB"], [], "NVIDIA-A100-SXM4-40GB+NVIDIA-H200"),
        (["NVIDIA H200"], ["90402"], "NVIDIA-H200"),
        # CPUs have 0, and other nodes of the topology no version.
        ([], ["0", "90402", "90402", ""], "gfx942"),
        ([], ["90010"], "gfx90a"),
        ([], ["110001"], "gfx1101"),
        ([], ["90402", "90010"], "gfx90a+gfx942"),
        ([], [], "none"),
    ],
)
def test_a_gpu_is_its_model_or_architecture(tmp_path: Path, nvidia: list[str], amd: list[str], fact: str) -> None:
    with_gpus(tmp_path, *nvidia)
    with_amd(tmp_path / "nodes", *amd)
    assert gpu(str(tmp_path), str(tmp_path / "nodes")) == fact


@pytest.mark.parametrize("version", ["-90402", "9.4.2", "1234567", "\u0669", "90402 90010"])
def test_a_version_of_another_form_is_no_fact(tmp_path: Path, version: str) -> None:
    """The entries of such a node would mix with those of nodes that have no GPU."""
    with_amd(tmp_path / "nodes", version)
    with pytest.raises(FactUnreadable, match="gfx_target_version"):
        gpu(str(tmp_path), str(tmp_path / "nodes"))


@pytest.mark.parametrize(
    ("said", "version"),
    [
        ("NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.104.05  Sat Aug 19 01:15:15 UTC 2023\n", "535.104.05"),
        ("NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  560.35.03  Release Build  (a@b)\n", "560.35.03"),
        ("NVRM version: unheard of\n", "none"),
        ("", "none"),
    ],
)
def test_the_drivers_version(tmp_path: Path, said: str, version: str) -> None:
    (tmp_path / "version").write_text(said + "GCC version:  gcc version 12.3.0\n")
    assert driver(str(tmp_path)) == version
    assert driver(str(tmp_path / "none")) == "none"


def amds(directory: str) -> str:
    return gpu(f"{directory}/none", f"{directory}/nodes")


@pytest.mark.parametrize(
    ("fact", "file"),
    [(cpu, ""), (driver, "version"), (gpu, "gpus/0/information"), (amds, "nodes/0/properties")],
)
def test_what_cannot_be_read_is_no_fact(tmp_path: Path, fact: Callable[[str], str], file: str) -> None:
    """Descriptors may have run out, say. Another fact in its place would mix the entries of different nodes."""
    (tmp_path / file).mkdir(parents=True, exist_ok=True)
    with pytest.raises(FactUnreadable, match="Is a directory"):
        fact(str(tmp_path))


def test_what_cannot_be_listed_or_is_not_there_is_no_fact(tmp_path: Path) -> None:
    (tmp_path / "gpus").touch()
    with pytest.raises(FactUnreadable, match="Not a directory"):
        gpu(str(tmp_path))
    with pytest.raises(FactUnreadable, match="there is none"):
        cpu(str(tmp_path / "cpuinfo"))


def test_only_what_a_profile_names_is_looked_up() -> None:
    """CPU and image are always known; the machine is there for the profile that needs it."""
    assert {*derive([NUMBA], "sha256:1")} == {"cpu", "image"}
    found = derive([registry.get("triton")], "sha256:1")
    assert {*found} == {"cpu", "image", "gpu", "machine"}
    assert found["cpu"].startswith(found["machine"])


def test_a_namespace_differs_where_profile_or_any_fact_differs() -> None:
    names = {
        namespace(NUMBA, FACTS),
        namespace(registry.get("inductor"), FACTS),
        namespace(NUMBA, {**FACTS, "image": "sha256:2"}),
        namespace(NUMBA, {**FACTS, "cpu": "x86_64-2"}),
        namespace(NUMBA, {**FACTS, "cache": "a"}),
        namespace(NUMBA, {**FACTS, "cache": "b"}),
    }
    assert len(names) == 6
    assert all(len(name) == 32 and int(name, 16) for name in names)
    assert namespace(NUMBA, {**FACTS, "driver": "1"}) == namespace(NUMBA, dict(reversed(FACTS.items())))


def test_entries_that_were_divided_otherwise_never_mix() -> None:
    """A release, or the site, has changed its patterns: files that were one entry are two, or the other way round."""
    plain = NUMBA._replace(entries={"a/": (), "*.b": ("x",)}, nested={"n/": "triton"})
    others: list[dict[str, Any]] = [
        {"entries": {"a/*": (), "*.b": ("x",)}},
        {"entries": {"*.b": ("x",), "a/": ()}},  # the first one that fits counts
        {"never": ("*.log",)},
        {"nested": {"n/": "jax"}},
        {"nested": {"m/": "triton"}},
    ]
    assert len({namespace(plain._replace(**change), FACTS) for change in (*others, {})}) == 6
    checked = plain._replace(entries={"a/": ("y",), "*.b": ()}, formats={"*": "text"})
    assert namespace(checked, FACTS) == namespace(plain, FACTS)


def test_files_of_one_declared_name_are_never_seeded_under_another() -> None:
    files = NUMBA._replace(facts=("declared",))
    one, other = (derive([files], "sha256:1", name) for name in ("one", "other"))
    assert namespace(files, one) != namespace(files, other)
    assert namespace(files, derive([files], "sha256:1", "one", "a")) == namespace(files, one)


def test_a_profile_bound_to_one_path_has_a_namespace_for_each() -> None:
    bound, facts = NUMBA._replace(relocation="constant-path"), {**FACTS, "path": "/var/cache/warmstart"}
    assert namespace(bound, facts) != namespace(bound, {**facts, "path": "/cache"})
    assert namespace(NUMBA, facts) == namespace(NUMBA, {**facts, "path": "/cache"})


def test_a_namespace_without_a_fact_is_refused() -> None:
    """Entries that must not mix never share a namespace for want of a fact."""
    for profile, facts in ((NUMBA, {"image": "sha256:1"}), (NUMBA._replace(relocation="constant-path"), FACTS)):
        with pytest.raises(KeyError):
            namespace(profile, facts)
