"""A seeded job computes what a cold one computes: after edits, kills, ranks at once, and compaction. Real tools.

Numba is not here: it takes stale code after an edit of a helper, seeded or not (test_right_results.py).
"""

from __future__ import annotations

import json
import shlex

import pytest

from tests.lib.accounts import ALICE
from tests.lib.requirements import need_module
from tests.lib.site import Site

RULES = "rules:\n  - {{name: all, profiles: [{tool}]}}\n"
HELPER = "SCALE = {scale}\n\n\ndef scaled(x):\n    return x {operator} SCALE\n"
# The ranks of a job are forks: they compile at once, and import the tool once.
RANKS = """\
for _ in range(int(os.environ.get("RANKS", "1")) - 1):
    if not os.fork():
        break
"""
SHOWN = """\
os.write(1, f'"{{value.hex()}}"\\n'.encode())
while True:
    try:
        os.wait()
    except ChildProcessError:
        break
"""
# Settings as in tests/tools/jobs/inductor_job.py: one process compiles, and no header is precompiled.
INDUCTOR = """\
import os
os.environ["TORCHINDUCTOR_CPP_CACHE_PRECOMPILE_HEADERS"] = "0"
os.environ["TORCHINDUCTOR_VEC_ISA_OK"] = "1"
os.environ["TORCHINDUCTOR_COMPILE_THREADS"] = "1"
import torch
from helper import scaled

BIAS = {bias}


@torch.compile
def größe(x):
    return (scaled(x.sin()) + BIAS).cos().sum()


"""
JAX = """\
import os
os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"
import jax, jax.numpy as jnp
from helper import scaled

BIAS = {bias}


def Δ_einer_sehr_langen_größe(x):
    return jnp.sort(jnp.sin(scaled(x) @ x + BIAS), -1).std()


"""
SOURCES = {
    "inductor": {
        "job.py": INDUCTOR
        + RANKS
        + "torch.set_num_threads(1)\n"
        + "with torch.no_grad():\n    value = float(größe(torch.linspace(0, 1, 64)))\n"
        + SHOWN,
        "helper.py": HELPER,
    },
    "jax": {
        "job.py": JAX
        + RANKS
        + "value = float(jax.jit(Δ_einer_sehr_langen_größe)(jnp.linspace(0, 1, 4096).reshape(64, 64)))\n"
        + SHOWN,
        "helper.py": HELPER,
    },
}
DIRECTORIES = {"inductor": "x=1, größe@v1 [exp]", "jax": "my project"}
COLD = "TORCHINDUCTOR_CACHE_DIR JAX_COMPILATION_CACHE_DIR"
# What the program is, and how many ranks run it: edits of the file, of the helper, of its constant, and all back.
EDITS = [((1, 2, "*"), 2), ((3, 2, "*"), 4), ((3, 2, "+"), 2), ((3, 5, "+"), 2), ((1, 2, "*"), 2)]
# Kills the program once it has saved so many files. A killed one says so; one that saves fewer ends by itself.
KILLED = """\
touch "$TMPDIR/before"
setsid {command} >/dev/null & pid=$!
while kill -0 $pid 2>/dev/null; do
    if [ "$(find "$WARMSTART_CACHE/" -type f -newer "$TMPDIR/before" 2>/dev/null | wc -l)" -ge {saves} ]; then
        kill -KILL -$pid && echo '"killed"'
        break
    fi
    sleep 0.05
done
wait
"""


class Project:
    """A user's program, which is edited between its jobs."""

    def __init__(self, site: Site, tool: str) -> None:
        self.site, self.tool = site, tool
        self.path = site.cluster.base / f"edited-{tool}" / DIRECTORIES[tool]
        self.path.mkdir(parents=True)
        self._command = f"{site.cluster.python} {shlex.quote(str(self.path / 'job.py'))}"
        self._jobs = 0
        store = site.new_store(site.cluster.base / f"store-edited-{tool}")
        site.write_policy(RULES.format(tool=tool), constant="spank", store=str(store))

    def edit(self, bias: int, scale: int, operator: str) -> None:
        for name, text in SOURCES[self.tool].items():
            written = text.format(bias=bias, scale=scale, operator=operator)
            if not (self.path / name).exists() or (self.path / name).read_text() != written:
                (self.path / name).write_text(written)

    def cold(self) -> str:
        """Return what the program computes with empty caches of its own."""
        script = "; ".join(f'export {name}="$(mktemp -d)"' for name in COLD.split())
        (value,) = self._run(f"{script}; {self._command}", "--no-warm")[0]
        return value

    def seeded(self, ranks: int = 1) -> tuple[set[str], int]:
        """Return what a job's ranks compute, and how many entries the job was seeded with."""
        values, job_id = self._run(f"RANKS={ranks} {self._command}")
        assert len(values) == ranks
        return {*values}, sum(event["entries"] for event in self.site.seeded(job_id))

    def killed(self, saves: int) -> bool:
        """Run a job that is killed when its program has saved so many files. Return False if it saves fewer."""
        return self._run(KILLED.format(command=self._command, saves=saves))[0] == ["killed"]

    def _run(self, command: str, *arguments: str) -> tuple[list[str], int]:
        node = f"n{self._jobs % 2 + 1}"
        self._jobs += 1
        job_id = self.site.cluster.submit(f"#!/bin/sh\n{command}\n", ALICE, f"--nodelist={node}", *arguments)
        ended = self.site.finish(job_id, 300)
        assert ended.state == "COMPLETED", ended
        return [json.loads(line) for line in ended.output.splitlines() if line.startswith('"')], job_id


@pytest.mark.sweep
@pytest.mark.parametrize("tool", sorted(SOURCES))
def test_a_seeded_job_computes_what_a_cold_one_computes(plugged: Site, tool: str) -> None:
    """After each edit, a job that is killed between two saves, two or four ranks at once, and compaction."""
    need_module("jax" if tool == "jax" else "torch")
    project = Project(plugged, tool)
    cold: dict[tuple[int, int, str], str] = {}
    kills = 0
    for number, (edit, ranks) in enumerate(EDITS):
        project.edit(*edit)
        cold[edit] = cold.get(edit) or project.cold()
        kills += project.killed(1 + number)
        assert project.seeded(ranks)[0] == {cold[edit]}, (edit, ranks)
        assert plugged.command("cache", "compact", "--json").returncode == 0
        values, entries = project.seeded()
        assert values == {cold[edit]}, edit
        assert entries > 0
    assert len({*cold.values()}) == len(cold)
    assert kills > 0
