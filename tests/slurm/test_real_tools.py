"""Real tools on real Slurm: cold on one node as one user, warm on another as another, by the tools' own counters.

Each run leaves a line in build/tools.jsonl. What the tests' own environment lacks is large: it is taken from the
interpreter that WARMSTART_TOOLS_PYTHON names, if it does (tools/README.md says what that needs).
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.lib import tried
from tests.lib.accounts import ALICE, BOB
from tests.lib.requirements import unavailable
from tests.lib.site import Site, result
from warmstart.profiles import registry

pytestmark = pytest.mark.sweep

TOOLS_PYTHON = os.environ.get("WARMSTART_TOOLS_PYTHON", "")
RULES = """\
rules:
  - name: everyone
    profiles: [{profile}]
    scope: site
  - name: publisher
    match: {{partition: ci}}
    scope: site
    publish: {{users: [{publisher}]}}
"""
OWN_RULES = "rules:\n  - {{name: everyone, profiles: [{profile}]}}\n"


class Tool(NamedTuple):
    """A job of tests/tools/jobs with its argument, its profile, and the distributions that make it; the tool first."""

    job: str
    profile: str
    distributions: str
    is_elsewhere: bool = True  # with WARMSTART_TOOLS_PYTHON

    @property
    def python(self) -> str:
        """Return the interpreter to run it with, "" for the tests' own."""
        return TOOLS_PYTHON if self.is_elsewhere else ""


CUTE = "nvidia-cutlass-dsl apache-tvm-ffi torch"
HERE = {
    "numba": Tool("numba array", "numba", "numba", is_elsewhere=False),
    "inductor": Tool("inductor", "inductor", "torch", is_elsewhere=False),
    "jax": Tool("jax", "jax", "jax jaxlib", is_elsewhere=False),
    "extension": Tool("extension", "torch-extensions", "torch", is_elsewhere=False),
    "triton": Tool("triton", "triton", "triton", is_elsewhere=False),
    "triton for AMD": Tool("triton hip", "triton", "triton", is_elsewhere=False),
}
ELSEWHERE = {
    "jax": Tool("jax", "jax", "jax jaxlib"),
    "inductor": Tool("inductor", "inductor", "torch"),
    "extension": Tool("extension", "torch-extensions", "torch"),
    "triton": Tool("triton", "triton", "triton"),
    "triton for AMD": Tool("triton hip", "triton", "triton"),
    "numba for CUDA": Tool("numba_cuda", "numba", "numba-cuda numba"),
    "cute-dsl": Tool("cute_dsl", "cute-dsl", f"quack-kernels flash-attn-4 {CUTE}"),
    "cudnn-frontend": Tool("cudnn_frontend", "cudnn-frontend", f"nvidia-cudnn-frontend {CUTE}"),
    "hybrid-ep": Tool("hybrid_ep", "hybrid-ep", "nemo-automodel torch"),
    "flashinfer": Tool("flashinfer", "flashinfer", f"flashinfer-python {CUTE}"),
    "helion": Tool("helion", "helion", "helion torch jax"),
    "tvm-ffi": Tool("tvm_ffi", "tvm-ffi", "apache-tvm-ffi"),
    "cupy": Tool("cupy", "cupy", "cupy-cuda13x nvidia-cuda-nvrtc"),
    "warp": Tool("warp", "warp", "warp-lang"),
}
TOOLS = HERE | ({f"{name} of {TOOLS_PYTHON}": tool for name, tool in ELSEWHERE.items()} if TOOLS_PYTHON else {})


def ran(site: Site, tool: Tool, user: str, node: str, *arguments: str) -> tuple[int, dict[str, Any]]:
    """Run the tool's job to its end. Return its id and the line that it printed."""
    job_id = site.compile_job(tool.job, user, node, *arguments, python=tool.python)
    ended = site.finish(job_id)
    assert ended.state == "COMPLETED", ended
    return job_id, result(ended.output)


def counted(caches: list[dict[str, Any]]) -> int:
    """Return how many entries these caches have."""
    return sum(cache["entries"] for cache in caches)


def unpacked(store: Path, profile: str, target: Path) -> Path:
    """Return a directory with the entries of the one bundle that the store has of a profile."""
    (bundle,) = store.glob(f"caches/*/{profile}/*/*.sqsh")
    subprocess.run(["unsquashfs", "-quiet", "-no-progress", "-dest", target, bundle], check=True, capture_output=True)
    return target


def check(site: Site, tool: Tool, publisher: str, reader: str, tmp_path: Path) -> None:
    """All misses for the publisher on n1; all hits on n2, with nothing new to harvest."""
    own = registry.get(tool.profile).user_scope
    store = site.new_store(site.cluster.base / f"store-{tool.profile}-{len(tool.job)}{tool.is_elsewhere:d}")
    rules = (OWN_RULES if own else RULES).format(profile=tool.profile, publisher=publisher)
    site.write_policy(rules, constant="spank", store=str(store))
    first, cold = ran(site, tool, publisher, "n1", *(() if own else ("--partition=ci",)))
    second, warm = ran(site, tool, publisher if own else reader, "n2")
    assert (cold["cache_hits"], cold["cache_misses"] > 0) == (0, True)
    assert (warm["cache_hits"] > 0, warm["cache_misses"]) == (True, 0)
    assert counted(site.seeded(first)) == 0
    assert counted(site.seeded(second)) == counted(site.harvested(first)) > 0
    assert counted(site.harvested(second)) == 0
    damaged, refused = tried.damage(tool.profile, unpacked(store, tool.profile, tmp_path / "bundle"))
    assert refused > damaged / 5  # the least that the table of docs/cache-formats.md has
    tried.write(
        profile=tool.profile,
        job=tool.job,
        tools=tried.versions(tool.python or str(site.cluster.python), tool.distributions.split()),
        cold=cold,
        warm=warm,
        harvested=counted(site.harvested(first)),
        seeded=counted(site.seeded(second)),
        damaged=damaged,
        refused=refused,
    )


@pytest.mark.parametrize("name", TOOLS)
def test_cold_on_one_node_warm_on_another(plugged: Site, name: str, tmp_path: Path) -> None:
    """What one user's job compiled, another user's finds on another node."""
    tool = TOOLS[name]
    python, distribution = tool.python or sys.executable, tool.distributions.split()[0]
    if not tried.has(python, distribution):
        unavailable(f"{python} has no {distribution}")
    check(plugged, tool, ALICE, BOB, tmp_path)
