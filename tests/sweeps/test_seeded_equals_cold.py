"""A seeded job computes what a cold one computes: after edits, kills, ranks at once, and compaction. Real tools.

Numba is not here: it takes stale code after an edit of a helper, seeded or not (integration/test_stale_results.py).
"""

from __future__ import annotations

import json

import pytest

from tests.cluster.accounts import ALICE
from tests.cluster.site import Site
from tests.support.requirements import need_module

RULES = "rules:\n  - {{name: all, profiles: [{tool}]}}\n"
HELPER = "SCALE = {scale}\n\n\ndef scaled(x):\n    return x {operator} SCALE\n"
SOURCES = {
    "inductor": {
        "job.py": """\
import json, os
import torch
from helper import scaled

BIAS = {bias}
torch.set_num_threads(1)

@torch.compile
def model(x):
    return torch.softmax(scaled(x.sin()) @ x + BIAS, -1).cos().sum()

with torch.no_grad():
    value = model(torch.linspace(0, 1, 4096).reshape(64, 64))
print(json.dumps(float(value).hex()), flush=True)
""",
        "helper.py": HELPER,
    },
    "jax": {
        "job.py": """\
import json, os
os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"
import jax, jax.numpy as jnp
from helper import scaled

BIAS = {bias}
value = jax.jit(lambda x: jnp.sort(jnp.tanh(scaled(x) @ x + BIAS), -1).std())(jnp.linspace(0, 1, 4096).reshape(64, 64))
print(json.dumps(float(value).hex()), flush=True)
""",
        "helper.py": HELPER,
    },
    "torch-extensions": {
        "job.py": """\
import ctypes, json, os
from pathlib import Path
from torch.utils.cpp_extension import load

here = Path(__file__).parent
load("edited", [str(here / "edited.cpp")], is_python_module=False)
library = ctypes.CDLL(os.path.join(os.environ["TORCH_EXTENSIONS_DIR"], "edited", "edited.so"))
library.value.restype = ctypes.c_double
print(json.dumps(library.value().hex()), flush=True)
""",
        "edited.cpp": '#include "helper.h"\nextern "C" double value() {{ return scaled(1.0) + {bias}; }}\n',
        "helper.h": "const double scale = {scale};\nstatic double scaled(double x) {{ return x {operator} scale; }}\n",
    },
}
COLD = "TORCHINDUCTOR_CACHE_DIR JAX_COMPILATION_CACHE_DIR TORCH_EXTENSIONS_DIR"
EDITS = [(1, 2, "*"), (3, 2, "*"), (3, 2, "+"), (3, 5, "+"), (1, 2, "*")]  # the file, the helper, its constant, back


class Project:
    """A user's program, which is edited between its jobs."""

    def __init__(self, site: Site, tool: str) -> None:
        self.site, self.tool = site, tool
        self.path = site.cluster.base / f"edited-{tool}"
        self.path.mkdir()
        self._command = f"{site.cluster.python} {self.path}/job.py"
        self._jobs = 0
        store = site.new_store(site.cluster.base / f"store-edited-{tool}")
        site.write_policy(RULES.format(tool=tool), constant="spank", store=str(store))

    def edit(self, bias: int, scale: int, operator: str) -> None:
        """Write the program anew, as an editor does."""
        for name, text in SOURCES[self.tool].items():
            written = text.format(bias=bias, scale=scale, operator=operator)
            if not (self.path / name).exists() or (self.path / name).read_text() != written:
                (self.path / name).write_text(written)

    def cold(self) -> str:
        """Return what the program computes with empty caches of its own."""
        script = "; ".join(f'export {name}="$(mktemp -d)"' for name in COLD.split())
        (value,) = self._run(f"{script}; {self._command}", "--no-warm")
        return value

    def seeded(self, ranks: int = 1) -> set[str]:
        """Return what the program computes in a job, in so many processes at once."""
        values = self._run(f"for rank in $(seq {ranks}); do {self._command} & done; wait")
        assert len(values) == ranks
        return {*values}

    def killed(self, seconds: float) -> None:
        """Run a job whose program is killed after this time."""
        self._run(f"timeout -s KILL {seconds} {self._command}; true")

    def _run(self, command: str, *arguments: str) -> list[str]:
        node = f"n{self._jobs % 2 + 1}"
        self._jobs += 1
        script = f"#!/bin/sh\n{command}\n"
        ended = self.site.finish(self.site.cluster.submit(script, ALICE, f"--nodelist={node}", *arguments), 300)
        assert ended.state == "COMPLETED", ended
        return [json.loads(line) for line in ended.output.splitlines() if line.startswith('"')]


@pytest.mark.sweep
@pytest.mark.parametrize("tool", sorted(SOURCES))
def test_a_seeded_job_computes_what_a_cold_one_computes(plugged: Site, tool: str) -> None:
    """After each edit, a job that is killed on the way, four ranks at once, and compaction; and once more, warm."""
    need_module("jax" if tool == "jax" else "torch")
    project = Project(plugged, tool)
    cold: dict[tuple[int, int, str], str] = {}
    for number, edit in enumerate(EDITS):
        project.edit(*edit)
        cold[edit] = cold.get(edit) or project.cold()
        project.killed(2 + number)
        for ranks in (2, 4, 1) if number % 2 else (1, 4, 2):
            assert project.seeded(ranks) == {cold[edit]}, (edit, ranks)
        assert plugged.command("cache", "compact", "--json").returncode == 0
        assert project.seeded() == {cold[edit]}, edit
    assert len({*cold.values()}) == len(cold)
