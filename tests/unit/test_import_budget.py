"""What a hook imports, held as sets of modules: milliseconds are too noisy for a test.

See docs/architecture.md, rule 11.
"""

import subprocess
import sys
from pathlib import Path

import pytest

from warmstart import wing

HOOKS = Path(__file__).resolve().parents[2] / "hooks"

# Each of these costs more than all of our own modules that a warm prolog needs, or starts something.
NEVER_WARM = frozenset(
    {
        "yaml", "structlog", "filelock", "pyslurm", "click", "rich", "prometheus_client",
        "subprocess", "socket", "ssl", "tempfile", "shutil", "pathlib", "logging", "asyncio", "multiprocessing",
        "dataclasses", "inspect", "ctypes", "random", "traceback", "urllib", "importlib.metadata",
        "typing", "re", "enum", "json", "hashlib", "contextlib", "functools", "collections", "weakref", "selectors",
    }
)  # fmt: skip
WARM = {
    "nothing applies": ("warmstart.entry.prolog", "warmstart.plan"),
    "a warm image": ("warmstart.steps.workspace", "warmstart.steps.image", "warmstart.steps.environment"),
    "seeding": ("warmstart.steps.seed", "warmstart.caches.store.look", "warmstart.profiles.registry"),
    "three profiles' overlays": (
        "warmstart.seed.overlay", "warmstart.profiles.shipped", "warmstart.profiles.naming",
    ),
    "a barrier": ("warmstart.store.barrier", "warmstart.slurm.nodes"),
    **{
        f"a wing's {module}": (f"warmstart.wings.{module}",)
        for part in ("step", "end", "informs")
        for module in wing.with_part(part)
    },
    "an epilog without a run": ("warmstart.entry.epilog",),
    "a run that is over": ("warmstart.ending.release", "warmstart.images.notes"),  # in every epilog
    "a harvest of nothing": ("warmstart.entry.epilog", "warmstart.ending.release", "warmstart.steps.harvest"),
    "an earlier run": ("warmstart.ending.release",),  # in the prolog of a requeued job
}  # fmt: skip


def imported(*modules: str, then: str = "") -> set[str]:
    """Return all that a bare interpreter, started as hooks are, has loaded with these modules, and after `then`."""
    lines = ["import sys", f"sys.path.insert(0, {str(HOOKS)!r})"]
    lines += [f"import {module}" for module in ("warmstart.entry.prolog", *modules)]
    code = "; ".join([*lines, then or "pass", "print(*sys.modules)"])
    argv = [sys.executable, "-IS", "-c", code]
    return set(subprocess.run(argv, check=True, capture_output=True, text=True).stdout.split())


@pytest.mark.parametrize("case", sorted(WARM))
def test_the_hot_path_imports_almost_nothing(case: str) -> None:
    assert not imported(*WARM[case]) & NEVER_WARM


def test_a_job_without_an_earlier_run_loads_nothing_to_remove_it() -> None:
    first = "import types; warmstart.entry.prolog._supersede(types.SimpleNamespace(earlier_run=lambda: None), None)"
    for case in ("a warm image", "seeding", "a barrier"):
        assert "warmstart.ending.release" not in imported(*WARM[case], then=first)


def test_a_cache_that_is_all_mounted_starts_no_programs() -> None:
    mounted = (
        "import types; warmstart.steps.seed._Seeding.finish(types.SimpleNamespace(_warm=[], _vote=None, _profiles=[]))"
    )
    modules = ("warmstart.steps.seed", "warmstart.seed.overlay", "warmstart.seed.node_cache")
    assert "subprocess" not in imported(*modules, then=mounted)


def test_an_epilog_publishes_without_them(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"x")
    published = "; ".join(
        [
            "from warmstart.caches.store import bundles, layout; import os",
            f"where = layout.Namespace({str(tmp_path)!r}, 'user-1', 'numba', 'ns')",
            f"draft = bundles.Draft('a', 1, 7, {{'e': {{'e': layout.File(1, {'ab' * 32!r}, 0)}}}})",
            f"bundles.publish(where, 'n1', os.open({str(tmp_path / 'file')!r}, os.O_RDONLY), draft, 0)",
        ]
    )
    modules = ("warmstart.harvest.collect", "warmstart.profiles.judge", "warmstart.caches.store.bundles")
    of_signal = {"enum", "functools", "collections"}
    assert not imported(*modules, "warmstart.store.atomic", then=published) & (NEVER_WARM - of_signal)


def test_a_hook_that_waits_loads_nothing_that_imports() -> None:
    loaded = imported("warmstart.steps.image", "warmstart.images.imports.waiting")
    assert not loaded & {"warmstart.images.imports.making", "warmstart.images.imports.verify"}


@pytest.mark.parametrize(
    "program",
    [
        *(f"entry.{name}" for name in ("prolog", "epilog", "pyxis_importer", "job_container")),
        *(f"wings.{module}" for module in wing.programs().values()),
    ],
)
def test_only_the_command_line_needs_its_libraries(program: str) -> None:
    assert not imported(f"warmstart.{program}") & {"click", "rich", "prometheus_client"}
