"""What a warm job costs, as counts: milliseconds are too noisy for a test. `make bench` times the same hooks."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.bench_site import USUAL, BenchSite, bench_site

BUNDLES = 10
# A little more than with Linux 6.18 and Python 3.11, where the start of the interpreter makes 350 of them.
CALLS = {"prolog": 1060, "epilog": 1750}
ON_THE_STORE = {"prolog": 23, "epilog": 0}
MODULES = 51  # of our own; packages, which are empty, are not counted


@pytest.fixture(scope="module")
def site(install: Callable[[Path], None]) -> Iterator[BenchSite]:
    """Yield a site with an image, twenty rules, and three profiles that are seeded from ten bundles."""
    with bench_site(10, install) as made:
        made.write_policy(f"trees: {{prefixes: [/lustre]}}\n{USUAL}")
        made.fill_caches(BUNDLES)
        made.hook("prolog").run()  # mounts the bundles
        made.hook("epilog").run()
        yield made


def calls(site: BenchSite, hook: str) -> list[str]:
    """Run a hook; return its system calls and those of its children."""
    command = site.hook(hook)
    log = site.base / "calls"
    argv = ["/usr/bin/strace", "-f", "-y", "-qq", "-e", "signal=none", "-o", str(log), *command.argv]
    subprocess.run(argv, env=dict(command.env), check=True)
    return [line for line in log.read_text().splitlines() if "resumed>" not in line]


def test_a_warm_job_makes_few_system_calls(site: BenchSite) -> None:
    """Of which almost none reach the store, and none of an epilog with nothing new.

    A policy that offers trees costs a job without one nothing.
    """
    found = {hook: calls(site, hook) for hook in ("prolog", "epilog")}
    store = re.escape(str(site.base / "store"))
    assert {
        hook: sum(bool(re.search(rf'(?:"|<){store}/', call)) for call in found[hook]) for hook in found
    } == ON_THE_STORE
    assert [call for call in found["prolog"] if re.search(r'"(\S*/)?(trees?|lustre)[/"]', call)] == []
    assert {hook: len(found[hook]) for hook in CALLS if len(found[hook]) > CALLS[hook]} == {}


def test_a_warm_prolog_loads_few_modules(site: BenchSite) -> None:
    """Each takes as long as several system calls."""
    command = site.hook("prolog")
    release = site.prefix / "lib/warmstart/python"
    listed = site.base / "start"
    ours = 'print(*(name for name, module in sys.modules.items() if name.startswith("warmstart.")))'
    listed.write_text(
        (release / "warmstart/start.py").read_text().replace("sys.stdout.flush()", f"{ours}\n    sys.stdout.flush()", 1)
    )
    argv = ["/usr/bin/python3", "-ISXutf8", str(listed), "prolog", str(site.prefix), str(release)]
    done = subprocess.run(argv, env=dict(command.env), check=True, capture_output=True, text=True)
    site.hook("epilog").run()
    names = set(done.stdout.split())
    packages = {name.rpartition(".")[0] for name in names}
    assert "warmstart.seed.overlay" in names
    assert not {name for name in names if name.startswith(("warmstart.trees", "warmstart.steps.tree"))}
    assert len(names - packages) <= MODULES
