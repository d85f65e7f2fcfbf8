"""Triton's entries, on real ones of four releases: whole groups about one kernel."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from tests.lib.cache_files import TRITON_RELEASES, of_tool, shared, triton_kernel
from tests.lib.judging import MTIME, Judge
from warmstart.profiles.judge import judge

KERNEL = triton_kernel("3.9")
KEY = next(iter(KERNEL)).partition("/")[0]
GROUP, META, CUBIN, PTX = (
    f"{KEY}/{name}" for name in ("__grp__add_kernel.json", "add_kernel.json", "add_kernel.cubin", "add_kernel.ptx")
)
MODULE = f"{KEY}/cuda_utils.cpython-311-x86_64-linux-gnu.so"


def edited(content: bytes, **changes: object) -> bytes:
    """Return a JSON object with other values; None takes a key away."""
    data = json.loads(content) | changes
    return json.dumps({key: value for key, value in data.items() if value is not None}).encode()


@pytest.mark.parametrize("release", TRITON_RELEASES)
def test_what_each_release_wrote_is_valid(verdict: Judge, release: str) -> None:
    """Three forms of the key, two ABIs of the cubin, with and without `.source`."""
    assert verdict("triton", triton_kernel(release)) is None


AMD_KEY = min(of_tool("triton-amd")).partition("/")[0]
AMD = {name: content for name, content in of_tool("triton-amd").items() if name.startswith(AMD_KEY)}
HSACO, AMD_META = f"{AMD_KEY}/add_kernel.hsaco", f"{AMD_KEY}/add_kernel.json"
OF_ANOTHER = next(c for n, c in of_tool("triton-amd").items() if n.endswith(".hsaco") and not n.startswith(AMD_KEY))


def test_kernels_for_amd_are_valid(verdict: Judge) -> None:
    """Code object and assembly in place of cubin and PTX."""
    assert verdict("triton", AMD) is None


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        (HSACO, b"", "elf-truncated"),
        (HSACO, AMD[HSACO][:-1], "elf-truncated"),
        (HSACO, AMD[HSACO] + b"\0", "elf-malformed"),
        (HSACO, shared(), "elf-malformed"),
        (HSACO, KERNEL[CUBIN], "elf-malformed"),
        (HSACO, OF_ANOTHER, "other-target"),
        (HSACO, AMD[HSACO].replace(b"\0add_kernel.kd\0", b"\0sub_kernel.kd\0"), "other-function"),
        (AMD_META, AMD[AMD_META].replace(b'"backend": "hip", "arch"', b'"backend": "cuda", "arch"'), "field-malformed"),
        (f"{AMD_KEY}/add_kernel.amdgcn", b"", "text-malformed"),
    ],
)
def test_a_mixed_or_damaged_kernel_for_amd_is_refused(verdict: Judge, name: str, content: bytes, reason: str) -> None:
    """Code that was cut short, is for another GPU, or has another kernel."""
    assert verdict("triton", {**AMD, name: content}) == reason


@pytest.mark.parametrize(
    "files",
    [{MODULE: shared()}, {f"{KEY}/f.autotune.json": b'{"key": [], "configs_timings": [[{"num_warps": 4}, [0.1]]]}'}],
    ids=["module", "timings"],
)
def test_modules_and_timings_are_entries(verdict: Judge, files: dict[str, bytes]) -> None:
    """A key directory without a group is a host module's or an autotuner's."""
    assert verdict("triton", files) is None


@pytest.mark.parametrize("name", sorted({*KERNEL} - {GROUP}))
def test_a_group_without_one_of_its_files_is_refused(verdict: Judge, name: str) -> None:
    """What the group names must be there, each single file."""
    files = {other: content for other, content in KERNEL.items() if other != name}
    assert verdict("triton", files) == "incomplete"


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        (GROUP, b"", "json-malformed"),
        (GROUP, KERNEL[GROUP][:-2], "json-malformed"),
        (GROUP, b'{"child_paths": ["add_kernel.cubin"]}', "field-malformed"),
        (GROUP, edited(KERNEL[GROUP], child_paths={"add_kernel.json": "/etc/shadow"}), "field-malformed"),
        (GROUP, edited(KERNEL[GROUP], child_paths={"x": f"/c/{KEY}/../x"}), "field-malformed"),
        (GROUP, edited(KERNEL[GROUP], child_paths={"add_kernel.json": f"/c/{KEY}/add_kernel.json"}), "unexpected-file"),
        (META, KERNEL[META][:100], "json-malformed"),
        (META, edited(KERNEL[META], hash="0" * 64), "name-not-hash"),
        (META, edited(KERNEL[META], hash=None), "name-not-hash"),
        (META, edited(KERNEL[META], hash=7), "name-not-hash"),
        (META, edited(KERNEL[META], target=None), "field-malformed"),
        (META, edited(KERNEL[META], target={"backend": "xpu", "arch": 90, "warp_size": 64}), "other-vendor"),
        (META, edited(KERNEL[META], target={"backend": "hip", "arch": 90, "warp_size": 64}), "field-malformed"),
        (META, edited(KERNEL[META], target={"backend": "hip", "arch": "gfx90a", "warp_size": 64}), "incomplete"),
        (META, edited(KERNEL[META], target={"backend": 7, "arch": 120, "warp_size": 32}), "field-malformed"),
        (META, edited(KERNEL[META], target={"backend": "cuda", "arch": 90, "warp_size": 32}), "other-target"),
        (META, edited(KERNEL[META], target={"backend": "cuda", "arch": True, "warp_size": 32}), "field-malformed"),
        (META, edited(KERNEL[META], shared=-1), "field-malformed"),
        (META, edited(KERNEL[META], name="other"), "field-malformed"),
        (CUBIN, b"", "elf-truncated"),
        (CUBIN, KERNEL[CUBIN][:-1], "elf-truncated"),
        (CUBIN, KERNEL[CUBIN] + b"\0", "elf-malformed"),
        (CUBIN, shared(), "elf-malformed"),
        (CUBIN, next(v for k, v in triton_kernel("3.4").items() if k.endswith(".cubin")), "other-target"),
        (CUBIN, KERNEL[CUBIN].replace(b".text.add_kernel", b".text.sub_kernel"), "other-target"),
        (PTX, KERNEL[PTX].replace(b"sm_120", b"sm_90"), "other-target"),
        (PTX, KERNEL[PTX].replace(b".entry add_kernel(", b".entry sub_kernel("), "other-target"),
        (PTX, b"", "text-malformed"),
        (f"{KEY}/add_kernel.ttir", b"\xff\xfe", "text-malformed"),
        (f"{KEY}/__grp__sub_kernel.json", KERNEL[GROUP], "unexpected-file"),
        (f"{KEY}/sub_kernel.cubin", KERNEL[CUBIN], "unexpected-file"),
        (MODULE, shared(), "unexpected-file"),
    ],
)
def test_a_mixed_or_damaged_kernel_is_refused(verdict: Judge, name: str, content: bytes, reason: str) -> None:
    """Groups of hostile paths, metadata of another kernel, machine code that is cut short or for another GPU."""
    assert verdict("triton", {**KERNEL, name: content}) == reason


@pytest.mark.parametrize(
    ("files", "reason"),
    [
        ({META: KERNEL[META], CUBIN: KERNEL[CUBIN]}, "incomplete"),
        ({MODULE: b""}, "elf-truncated"),
        ({MODULE: shared(), f"{KEY}/f.autotune.json": b"{}"}, "incomplete"),
        ({f"{KEY}/f.autotune.json": b"{}"}, "field-malformed"),
    ],
)
def test_what_is_no_group_is_refused(verdict: Judge, files: dict[str, bytes], reason: str) -> None:
    """A writer that died before the group, and things that do not belong together."""
    assert verdict("triton", files) == reason


def test_a_file_younger_than_its_group_is_a_second_writers(verdict: Judge, stage: Path, stage_fd: int) -> None:
    """Two processes' files in one group gave wrong numbers without an error (triton#11319)."""
    assert verdict("triton", KERNEL) is None
    os.utime(stage / CUBIN, ns=(MTIME, MTIME + 1))
    assert judge("triton", stage_fd, {KEY: list(KERNEL)}) == {KEY: "two-writers"}
    os.utime(stage / GROUP, ns=(MTIME, MTIME + 1))
    assert judge("triton", stage_fd, {KEY: list(KERNEL)}) == {KEY: None}


def test_no_truncated_cubin_passes(verdict: Judge) -> None:
    """The program headers are last: cut anywhere, some are lost."""
    content = KERNEL[CUBIN]
    for length in [*range(0, len(content), 97), len(content) - 1]:
        assert verdict("triton", {**KERNEL, CUBIN: content[:length]}) == "elf-truncated", length
