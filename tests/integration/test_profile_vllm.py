"""Artifacts of vLLM's compile cache, written by torch itself with vLLM's settings.

vLLM needs a GPU; torch's standalone compiler, which makes the artifacts, does not. Without torch these tests fail in CI
(CI=true) and are skipped elsewhere.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.requirements import need_module
from warmstart.profiles.judge import judge

PART = "torch_compile_cache/0123456789/rank_0_0/backbone"
NAME = "artifact_compile_range_1_8192_subgraph_0"
# What vllm/compilation/compiler_interface.py does with each piece of a model.
PROGRAM = """
import sys
import torch

def keep(graph, inputs):
    compiled = torch._inductor.standalone_compile(graph, inputs)
    compiled.save(path=sys.argv[1], format="binary")
    return graph.forward

torch.compile(lambda x: x @ x, backend=keep)(torch.ones(8, 8))
"""


@pytest.fixture(scope="module")
def artifact(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """Return one artifact."""
    need_module("torch")
    base = tmp_path_factory.mktemp("vllm")
    environment = {"PATH": os.defpath, "HOME": str(base), "TMPDIR": str(base)}
    environment |= {"TORCHINDUCTOR_CPP_CACHE_PRECOMPILE_HEADERS": "0", "TORCHINDUCTOR_VEC_ISA_OK": "0"}
    command = [sys.executable, "-c", PROGRAM, str(base / "artifact")]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    return (base / "artifact").read_bytes()


def verdict(stage: Path, content: bytes) -> str | None:
    """Return the judge's verdict on a part with this artifact."""
    files = {
        f"{PART}/vllm_compile_cache.py": f"{{(None, 0, 'inductor_standalone'): ('{NAME}', '/c/{NAME}')}}".encode(),
        f"{PART}/{NAME}": content,
    }
    for name, data in files.items():
        (stage / name).parent.mkdir(parents=True, exist_ok=True)
        (stage / name).write_bytes(data)
    fd = os.open(stage, os.O_RDONLY)
    try:
        return judge("vllm", fd, {PART: list(files)})[PART]
    finally:
        os.close(fd)


def test_what_torch_wrote_is_valid(artifact: bytes, tmp_path: Path) -> None:
    """The format is the one of this torch."""
    assert verdict(tmp_path, artifact) is None


def test_every_damage_is_found(artifact: bytes, tmp_path: Path) -> None:
    """The checksum at the start covers all that follows."""
    dice = random.Random(3)
    for _ in range(60):
        at = dice.randrange(len(artifact))
        flipped = artifact[:at] + bytes([artifact[at] ^ 1 << dice.randrange(8)]) + artifact[at + 1 :]
        assert verdict(tmp_path, flipped) == "hash-differs"
        assert verdict(tmp_path, artifact[:at]) == "hash-differs"
