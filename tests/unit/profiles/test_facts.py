"""What names a namespace."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

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


def with_gpus(tmp_path: Path, *models: str) -> str:
    """Return the fact of a node whose driver has GPUs of these models."""
    for number, model in enumerate(models):
        directory = tmp_path / f"gpus/0000:{number:02x}:00.0"
        directory.mkdir(parents=True, exist_ok=True)
        (directory / "information").write_text(
            f"Model: \t\t {model}\nIRQ:   \t\t {number}\nGPU UUID: \t GPU-{number}\n"
        )
    return gpu(str(tmp_path))


def test_gpus_of_one_model_are_one_fact(tmp_path: Path) -> None:
    """How many there are and which they are changes no machine code."""
    assert with_gpus(tmp_path, "NVIDIA H200") == "NVIDIA-H200"
    assert with_gpus(tmp_path, "NVIDIA H200", "NVIDIA H200") == "NVIDIA-H200"


def test_a_node_of_two_models_is_like_no_other(tmp_path: Path) -> None:
    """Which of them a job has is not known to a prolog."""
    assert with_gpus(tmp_path, "NVIDIA H200", "NVIDIA A100-SXM4-40GB") == "NVIDIA-A100-SXM4-40GB+NVIDIA-H200"


def test_a_pod_that_sees_some_of_the_gpus_has_the_nodes_facts(tmp_path: Path) -> None:
    """NVIDIA's container toolkit hides the others below /proc/driver/nvidia; a new proc shows all."""
    version = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.86.15  Release Build\n"
    facts = set()
    for name, gpus in (("all", 8), ("some", 1)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "version").write_text(version)
        facts.add((with_gpus(tmp_path / name, *["NVIDIA H200"] * gpus), driver(str(tmp_path / name))))
    assert facts == {("NVIDIA-H200", "570.86.15")}


def test_without_a_driver_there_is_no_gpu(tmp_path: Path) -> None:
    """A node without the drivers' files, or with GPUs that they can't describe, says so."""
    assert gpu(str(tmp_path), str(tmp_path / "nodes")) == "none"
    (tmp_path / "gpus/0000:01:00.0").mkdir(parents=True)
    (tmp_path / "nodes/0").mkdir(parents=True)
    assert gpu(str(tmp_path), str(tmp_path / "nodes")) == "none"


def with_amd(tmp_path: Path, *versions: str) -> str:
    """Return the fact of a node whose kernel lists CPUs and AMD's GPUs with these versions."""
    for number, version in enumerate(versions):
        directory = tmp_path / f"nodes/{number}"
        directory.mkdir(parents=True, exist_ok=True)
        (directory / "properties").write_text(f"cpu_cores_count 0\nsimd_count 304\n{version}vendor_id 4098\n")
    return gpu(str(tmp_path), str(tmp_path / "nodes"))


@pytest.mark.parametrize(
    ("version", "arch"),
    [("90402", "gfx942"), ("90010", "gfx90a"), ("90008", "gfx908"), ("110001", "gfx1101"), ("120500", "gfx1250")],
)
def test_amds_gpus_are_their_architecture(tmp_path: Path, version: str, arch: str) -> None:
    """Major, minor and stepping, the last two in hexadecimal; CPUs have 0, and other nodes no version."""
    line = f"gfx_target_version {version}\n"
    assert with_amd(tmp_path, "gfx_target_version 0\n", line, line, "") == arch


def test_two_architectures_are_like_no_other(tmp_path: Path) -> None:
    """As with two models of NVIDIA's."""
    versions = [f"gfx_target_version {version}\n" for version in ("90402", "90010")]
    assert with_amd(tmp_path, *versions) == "gfx90a+gfx942"


def test_nvidias_namespaces_keep_their_names(tmp_path: Path) -> None:
    """What AMD's driver lists counts only where NVIDIA's lists nothing."""
    with_amd(tmp_path, "gfx_target_version 90402\n")
    assert with_gpus(tmp_path, "NVIDIA H200") == "NVIDIA-H200"
    assert gpu(str(tmp_path), str(tmp_path / "nodes")) == "NVIDIA-H200"


@pytest.mark.parametrize("version", ["", "-90402", "9.4.2", "1234567", "\u0669", "90402 90010"])
def test_a_version_of_another_form_is_no_fact(tmp_path: Path, version: str) -> None:
    """The entries of such a node would mix with those of nodes that have no GPU."""
    with pytest.raises(FactUnreadable, match="nodes/0/properties: gfx_target_version is"):
        with_amd(tmp_path, f"gfx_target_version {version}\n")


@pytest.mark.parametrize(
    ("said", "version"),
    [
        ("NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.104.05  Sat Aug 19 01:15:15 UTC 2023\n", "535.104.05"),
        ("NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  560.35.03  Release Build  (a@b)\n", "560.35.03"),
        ("GCC version:  gcc version 11.4.0\n", "none"),
        ("NVRM version: unheard of\n", "none"),
        ("", "none"),
    ],
)
def test_the_drivers_version(tmp_path: Path, said: str, version: str) -> None:
    """Both kinds of the kernel module say it in a line of their own."""
    (tmp_path / "version").write_text(said + "GCC version:  gcc version 12.3.0\n")
    assert driver(str(tmp_path)) == version
    assert driver(str(tmp_path / "none")) == "none"


def test_what_a_job_declares_names_a_namespace() -> None:
    """Files of one name are never seeded under another."""
    files = registry.get("numba")._replace(facts=("image", "declared"))
    one, other = (derive([files], "sha256:1", name) for name in ("one", "other"))
    assert one["declared"] == "one"
    assert namespace(files, one) != namespace(files, other)


def test_only_what_a_profile_names_is_looked_up() -> None:
    """CPU and image are always known; the machine is there for the profile that needs it."""
    assert {*derive([registry.get("numba")], "sha256:1")} == {"cpu", "image"}
    found = derive([registry.get("triton")], "sha256:1")
    assert {*found} == {"cpu", "image", "gpu", "machine"}
    assert found["image"] == "sha256:1"
    assert found["cpu"].startswith(found["machine"])


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


def test_a_name_of_the_cache_parts_profiles_and_nothing_else() -> None:
    """Without one a namespace has the name that it always had; declared files have names of their own."""
    numba, facts = registry.get("numba"), {"image": "sha256:1", "cpu": "x86_64-1"}
    assert namespace(numba, facts) == "1af9fa13659cdd907de82425e6f7111a"
    assert len({namespace(numba, {**facts, "cache": name}) for name in ("a", "b")}) == 2
    files = numba._replace(facts=("image", "declared"))
    declared = derive([files], "sha256:1", "one")
    assert namespace(files, derive([files], "sha256:1", "one", "a")) == namespace(files, declared)
    assert "cache" not in declared


def test_a_new_revision_of_a_profile_begins_a_new_namespace() -> None:
    """What an earlier release published is not seeded any more."""
    facts = {"image": "x", "cpu": "y"}
    profile = registry.get("numba")
    names = {namespace(profile._replace(revision=number), facts) for number in (1, 2, 3)}
    assert len(names) == 3


def test_a_profile_bound_to_one_path_has_a_namespace_for_each() -> None:
    """Entries made at one constant path are never offered at another, nor where there is none."""
    bound = registry.get("numba")._replace(relocation="constant-path")
    facts = {"image": "sha256:1", "cpu": "x86_64-1", "path": "/var/cache/warmstart"}
    assert namespace(bound, facts) != namespace(bound, {**facts, "path": "/cache"})
    assert namespace(registry.get("numba"), facts) == namespace(registry.get("numba"), {**facts, "path": "/cache"})
    with pytest.raises(KeyError, match="path"):
        namespace(bound, {"image": "sha256:1", "cpu": "x86_64-1"})


def test_a_namespace_without_a_fact_is_refused() -> None:
    """Entries that must not mix never share a namespace for want of a fact."""
    with pytest.raises(KeyError):
        namespace(registry.get("numba"), {"image": "sha256:1"})


def amds(directory: str) -> str:
    """Return the fact of a node without NVIDIA's driver."""
    return gpu(f"{directory}/none", f"{directory}/nodes")


@pytest.mark.parametrize(
    ("fact", "file"),
    [(cpu, ""), (driver, "version"), (gpu, "gpus/0/information"), (amds, "nodes/0/properties")],
)
def test_what_cannot_be_read_is_no_fact(tmp_path: Path, fact: Callable[[str], str], file: str) -> None:
    """Descriptors may have run out, say. Another fact in its place would mix the entries of different nodes."""
    (tmp_path / file).mkdir(parents=True, exist_ok=True)
    with pytest.raises(FactUnreadable, match=f"{tmp_path / file}: Is a directory"):
        fact(str(tmp_path))


def test_gpus_that_cannot_be_listed_are_not_none(tmp_path: Path) -> None:
    """Only a node without the driver's directory has no GPU."""
    (tmp_path / "gpus").touch()
    with pytest.raises(FactUnreadable, match="gpus: Not a directory"):
        gpu(str(tmp_path))


def test_a_node_without_proc_is_like_no_other(tmp_path: Path) -> None:
    """Else all such nodes were of one kind."""
    with pytest.raises(FactUnreadable, match="there is none"):
        cpu(str(tmp_path / "cpuinfo"))
