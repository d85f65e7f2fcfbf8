"""The hooks of a job whose image and caches are there, each as a whole process."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from itertools import islice

from tests.lib.bench_site import USUAL, BenchSite, Command
from tools.bench.clock import cpu_of_children, in_turns, launcher, timed, times
from tools.bench.figures import Figure, Series

BUNDLES = 10


def measured(site: BenchSite, rounds: int) -> Iterator[Figure]:
    """Time prolog, epilog and task prolog; count the prolog's system calls."""
    site.write_policy(USUAL)
    site.fill_caches(BUNDLES)
    yield from _prolog_and_epilog(site, rounds, "hooks", launcher(site.image))
    yield _task_prolog(site, rounds * 5)
    yield _system_calls(site)


def on_network(site: BenchSite, rounds: int) -> Iterator[Figure]:
    """Time prolog and epilog of a site whose store is on a network file system, as is the launchers' image.

    The CPU time of its client and servers belongs to nobody, so no CPU time is told.
    """
    site.write_policy(USUAL)
    site.fill_caches(BUNDLES)
    shared = f"{site.base}/store/launchers.sqsh"
    site.as_owner("/bin/cp", str(site.image), shared).run()
    on_store = site.as_owner(*launcher(shared).argv)
    for figure in islice(_prolog_and_epilog(site, rounds, "network", on_store), 2):
        yield figure._replace(peers=[peer._replace(goal=None) for peer in figure.peers])  # goals are for a local store


def _prolog_and_epilog(site: BenchSite, rounds: int, group: str, peer: Command) -> Iterator[Figure]:
    python = Command(["/usr/bin/python3", "-I", "-c", "pass"])
    commands = {
        "prolog": site.hook("prolog"),
        "epilog": site.hook("epilog"),
        "no rule": site.hook("prolog", 8, "none"),
        "launcher": peer,
        "python": python,
    }
    cpu: dict[str, list[float]] = {name: [] for name in commands}

    def measure(name: str) -> float:
        before = cpu_of_children()
        taken = timed(commands[name].run)
        cpu[name].append(cpu_of_children() - before)
        return taken

    measures = {name: partial(measure, name) for name in commands}
    in_turns(measures, 1)  # with all modules and bundles in memory
    for values in cpu.values():
        values.clear()
    for found, kind in ((in_turns(measures, rounds), ""), (cpu, ", CPU time")):
        launchers = Series("flock + unsquashfs -l", found["launcher"], goal=0.5)
        bare = Series("python3 -I -c pass", found["python"], goal=3.0)
        yield Figure(group, f"warm prolog{kind}", Series("warmstart", found["prolog"]), (launchers, bare))
        prolog = Series("its prolog", found["prolog"], goal=1.3)
        yield Figure(group, f"epilog, nothing to bring back{kind}", Series("warmstart", found["epilog"]), (prolog,))
        bare = bare._replace(goal=1.2)
        yield Figure(group, f"prolog of a job without a rule{kind}", Series("warmstart", found["no rule"]), (bare,))


def _task_prolog(site: BenchSite, rounds: int) -> Figure:
    """Time what every task pays, beside reading the same file."""
    site.hook("prolog").run()
    view = site.prefix / "run/warmstart/view/7/environment"
    cat = Command(["/bin/sh", "-c", f"cat {view}"], {"PATH": "/bin"})
    found = times({"ours": site.hook("task-prolog").run, "cat": cat.run}, rounds)
    site.hook("epilog").run()
    peer = Series("sh -c 'cat FILE'", found["cat"], goal=1.2)
    return Figure("hooks", "task prolog", Series("warmstart", found["ours"]), (peer,))


def _system_calls(site: BenchSite) -> Figure:
    """Count the system calls of a warm prolog on the store, with one image in it and with 1,000 more."""
    few = _calls_on_store(site)
    images = site.base / "store" / "images"
    for number in range(1000):
        (images / f"{number:064x}.x86_64.sqsh").write_bytes(b"")
    many = _calls_on_store(site)
    peer = Series("with 1,000 more images", [many])
    return Figure("calls", "system calls on the store, warm prolog", Series("warmstart", [few]), (peer,), "calls")


def _calls_on_store(site: BenchSite) -> int:
    """Count calls that name the store or use a descriptor of it."""
    calls = site.hook("prolog").calls(site.base / "strace.log")
    site.hook("epilog").run()
    return site.on_store(calls)
