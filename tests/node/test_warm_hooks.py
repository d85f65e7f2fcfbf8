"""What a warm job costs, as counts: milliseconds are too noisy for a test. `make bench` times the same hooks."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.lib.bench_site import USUAL, BenchSite, Command, bench_site

BUNDLES = 10
# A little more than with Linux 6.18 and Python 3.11, where the start of the interpreter makes 350 of them.
CALLS = {"prolog": 990, "epilog": 1700, "no rule": 500}
ON_THE_STORE = {"prolog": 35, "epilog": 21}  # nine for each listing; the report for the job's user
WAITING = re.compile(r"^\d+ +(pselect6|poll|wait4)\(")
MODULES = {"prolog": 52, "no rule": 22}  # of our own; packages, which are empty, are not counted
CLASSES = {"prolog": 124, "no rule": 70}
HOT_CODE = 400_000  # bytes of it that are read


@pytest.fixture(scope="module")
def site(install: Callable[[Path], None]) -> Iterator[BenchSite]:
    """Yield a site with an image, twenty rules, and three profiles that are seeded from ten bundles."""
    with bench_site(10, install) as made:
        made.write_policy(USUAL)
        made.fill_caches(BUNDLES)
        made.hook("prolog").run()  # mounts the bundles
        made.hook("epilog").run()
        yield made


def calls(site: BenchSite, hook: str) -> list[str]:
    """Run a hook; return its system calls and those of its children, but for those that wait: load adds to them."""
    return [line for line in site.hook(hook).calls(site.base / "calls") if not WAITING.search(line)]


def test_a_warm_job_makes_few_system_calls(site: BenchSite) -> None:
    found = {hook: calls(site, hook) for hook in ("prolog", "epilog")}
    assert {hook: site.on_store(found[hook]) for hook in found} == ON_THE_STORE
    assert {hook: len(found[hook]) for hook in found if len(found[hook]) > CALLS[hook]} == {}


def test_a_job_without_a_rule_makes_few_system_calls(site: BenchSite) -> None:
    """It gets nothing, so that its hooks should not be noticed beside the start of an interpreter."""
    command = site.hook("prolog", 9, "none")
    command.run()
    found = command.calls(site.base / "calls")
    assert site.on_store(found) == 0
    assert len(found) <= CALLS["no rule"]
    assert sum(int(call.rpartition(" = ")[2]) for call in found if "hot.code>" in call and "read" in call) <= HOT_CODE


def test_a_warm_prolog_loads_few_modules(site: BenchSite) -> None:
    """Each takes as long as several system calls; so do two or three classes."""
    names, classes = loaded(site, site.hook("prolog"))
    site.hook("epilog").run()
    assert "warmstart.seed.overlay" in names
    assert (len(names) <= MODULES["prolog"], classes <= CLASSES["prolog"]) == (True, True), (len(names), classes)


def test_a_prolog_without_a_rule_loads_fewer(site: BenchSite) -> None:
    names, classes = loaded(site, site.hook("prolog", 9, "none"))
    assert "warmstart.policy.match" in names
    assert (len(names) <= MODULES["no rule"], classes <= CLASSES["no rule"]) == (True, True), (len(names), classes)


def loaded(site: BenchSite, command: Command) -> tuple[set[str], int]:
    """Run a prolog; return what it has loaded of our own: modules but for packages, which are empty, and classes."""
    release = site.prefix / "lib/warmstart/python"
    listed = site.base / "start"
    ours = """print(*(name for name, module in sys.modules.items() if name.startswith("warmstart.")))
    print(len({value for module in sys.modules.values() for value in vars(module).values()
        if isinstance(value, type) and value.__module__.startswith("warmstart.")}))"""
    listed.write_text(
        (release / "warmstart/start.py").read_text().replace("sys.stdout.flush()", f"{ours}\n    sys.stdout.flush()", 1)
    )
    argv = ["/usr/bin/python3", "-ISXutf8", str(listed), "entry.prolog", str(site.prefix), str(release)]
    done = subprocess.run(argv, env=dict(command.env), check=True, capture_output=True, text=True)
    *listing, classes = done.stdout.split()
    names = set(listing)
    return names - {name.rpartition(".")[0] for name in names}, int(classes)
