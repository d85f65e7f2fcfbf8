"""Faults that a load run injects, drawn from a seed.

They are of users, store, registry, policy or controller. None is a node's own, so no node may drain.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from tests.lib import mounts, processes
from tests.lib.accounts import IMPORT, STORE, VALIDATE
from tests.lib.cluster import Cluster
from tests.lib.registry import Registry
from tests.lib.site import Site
from tools.load import story
from tools.load.front import KINDS, Front
from tools.load.history import Gone, Place
from tools.load.resources import uid_of
from tools.load.story import Off

SHORT_S = 3.0
SETTLED_S = 300.0
# After one of these a job of the same wave may lack an image that was not in the store, or run cold.
COSTS_AN_IMAGE = {
    *("an import killed", "a worker killed", "a silent registry", "a registry talking nonsense", "switched off"),
    *("a read-only store", "a full store", "a store gone", "a full state disk", "off on one node", "torn files"),
}
# Not even an image in the store can be had then.
HIDES_IMAGES = {"a store gone", "off on one node", "torn files"}
# A file in the store cannot be read for a moment, also by a job.
BREAKS_READING = {"a store gone", "a store not connected"}
# A job runs without warmstart, and nobody tells it.
UNTOLD = {"switched off", "off on one node", "torn files"}
TORN = {
    "runtime": ("*/view/*/environment",),  # no run: state lies in memory
    "var": ("policy.json",),
    "store": (
        "caches/*/*/*/*.json",
        "caches/*/*/*/listing/*",
        "images/*.json",
        "images/tags/*.json",
        "ending/*/*",
        "runs/*/*",
    ),
}


class Faults:
    """What may go wrong, and how often it did."""

    def __init__(self, site: Site, registry: Registry, front: Front, seed: int, log: Path) -> None:
        self.injected: Counter[str] = Counter()
        self.in_wave: set[str] = set()
        self.failed: list[str] = []  # those that could not be injected or undone, and why
        self.off: list[Off] = []
        self.damaged: list[Gone] = []  # what is lost with files of caches
        self._site, self._registry, self._front, self._log = site, registry, front, log
        self._dice = random.Random(seed)
        self._uids = {site.cluster.account(name).uid for name in (STORE, IMPORT, VALIDATE)}
        self._kinds: dict[str, tuple[int, Callable[[list[str]], bool]]] = {
            "a job cancelled": (25, self._cancel),
            "a job requeued": (20, self._requeue),
            "a worker killed": (20, self._kill_worker),
            "an import killed": (6, self._kill_import),
            "a silent registry": (6, self._silent_registry),
            "a registry talking nonsense": (6, self._nonsense),
            "a read-only store": (6, self._read_only_store),
            "a full store": (6, self._full_store),
            "a store gone": (3, self._store_gone),
            "a store not connected": (6, self._not_connected),
            "torn files": (6, self._tear),
            "a full state disk": (5, self._full_state),
            "a damaged bundle": (6, self._damage),
            "a broken policy": (5, self._broken_policy),
            "switched off": (3, self._off),
            "off on one node": (6, self._off_on_one_node),
            "maintenance": (8, self._maintain),
            "slurmctld restarted": (2, self._restart_slurmctld),
            "a slurmd killed": (3, self._restart_slurmd),
        }

    @property
    def cluster(self) -> Cluster:
        """The cluster."""
        return self._site.cluster

    def inject(self, jobs: list[str]) -> None:
        """Inject one fault. `jobs` are the ids, as squeue writes them, of the jobs that have not ended."""
        names, kinds = zip(*self._kinds.items(), strict=True)
        (name,) = self._dice.choices(names, [weight for weight, _ in kinds])
        try:
            done = self._kinds[name][1](jobs)
        except (RuntimeError, TimeoutError, subprocess.SubprocessError) as error:
            self.failed.append(f"{name}: {error}")
            return
        if done:
            self.injected[name] += 1
            self.in_wave.add(name)

    def _cancel(self, jobs: list[str]) -> bool:
        return bool(jobs) and self._told("scancel", self._dice.choice(jobs))

    def _requeue(self, jobs: list[str]) -> bool:
        if not jobs or "+" in (job := self._dice.choice(jobs)):
            return False
        return self._told("scontrol", "requeue", job)  # False: it had not begun, or had ended

    def _told(self, *argv: str) -> bool:
        try:
            self.cluster.admin(*argv)
        except RuntimeError:
            return False
        return True

    def _kill_worker(self, _jobs: list[str]) -> bool:
        """Kill a process that works for a hook of this installation under another identity."""
        own = str(self.cluster.prefix).encode()
        found = [
            pid
            for pid in processes.parents()
            if uid_of(pid) in self._uids and any(own in word for word in processes.arguments(pid))
        ]
        return bool(found) and _kill(self._dice.choice(sorted(found)))

    def _kill_import(self, _jobs: list[str]) -> bool:
        found = self._site.imports()
        return bool(found) and _kill(self._dice.choice(sorted(found)))

    def _silent_registry(self, _jobs: list[str]) -> bool:
        with self._registry.silent():
            time.sleep(self._dice.uniform(0.5, 2) * SHORT_S)
        return True

    def _read_only_store(self, _jobs: list[str]) -> bool:
        try:
            with mounts.read_only(self._site.store):
                time.sleep(SHORT_S)
        except subprocess.CalledProcessError:  # somebody was writing
            return False
        return True

    def _full_store(self, _jobs: list[str]) -> bool:
        with mounts.full(self._site.store):
            time.sleep(SHORT_S)
        return True

    def _store_gone(self, _jobs: list[str]) -> bool:
        with mounts.hidden(self._site.store):
            time.sleep(SHORT_S)
        return True

    def _not_connected(self, _jobs: list[str]) -> bool:
        with mounts.not_connected(self._site.store):
            time.sleep(SHORT_S)
        return True

    def _tear(self, _jobs: list[str]) -> bool:
        """Cut one file of each kind off anywhere, as a crash of its server does."""
        runtime = self._site.runtime("")
        places = {"runtime": runtime, "var": self._site.var, "store": self._site.store}
        torn = False
        for place, pattern in ((place, pattern) for place, patterns in TORN.items() for pattern in patterns):
            found = sorted(path for path in places[place].glob(pattern) if path.is_file())
            with suppress(FileNotFoundError):
                if found and (size := (path := self._dice.choice(found)).stat().st_size):
                    os.truncate(path, self._dice.randrange(size))
                    torn = True
                    if pattern.startswith("caches/"):
                        scope, _, namespace = path.relative_to(self._site.store).parts[1:4]
                        self.damaged.append(Gone(time.time(), time.time(), Place(scope, namespace)))
        return torn

    def _full_state(self, _jobs: list[str]) -> bool:
        with mounts.full(self._site.var / self._dice.choice(self._site.cluster.nodes)):
            time.sleep(self._dice.choice((1, 8)) * SHORT_S)
        return True

    def _nonsense(self, _jobs: list[str]) -> bool:
        with self._front.nonsense(self._dice.choice(KINDS)):
            time.sleep(SHORT_S)
        return True

    def _damage(self, _jobs: list[str]) -> bool:
        """Change a byte of a published bundle, as a bad disk does."""
        found = sorted(self._site.store.glob("caches/*/*/*/*.sqsh"))
        if not found:
            return False
        path = self._dice.choice(found)
        with suppress(FileNotFoundError), path.open("r+b") as file:  # merged meanwhile
            at = self._dice.randrange(path.stat().st_size)
            file.seek(at)
            (byte,) = file.read(1)
            file.seek(at)
            file.write(bytes([byte ^ 255]))
        return True

    def _broken_policy(self, _jobs: list[str]) -> bool:
        policy = self._site.etc / "policy.yaml"
        text = policy.read_text()
        policy.write_text(text + "\nrules: {nonsense\n")
        time.sleep(SHORT_S)
        policy.write_text(text)
        return True

    def _off(self, _jobs: list[str]) -> bool:
        since = time.time()
        (self._site.etc / "off").touch()
        time.sleep(SHORT_S)
        (self._site.etc / "off").unlink()
        self.off.append(Off(since, time.time()))
        return True

    def _off_on_one_node(self, _jobs: list[str]) -> bool:
        """Switch one node off for longer than a job of several nodes takes."""
        since, node = time.time(), self._dice.choice(self.cluster.nodes)
        story.switch(self._log, node, off=True)
        time.sleep(3 * SHORT_S)
        story.switch(self._log, node, off=False)
        self.off.append(Off(since, time.time(), node))
        return True

    def _maintain(self, _jobs: list[str]) -> bool:
        maintain(self._site, *self._dice.choice(((), ("--store",))))
        return True

    def _restart_slurmctld(self, _jobs: list[str]) -> bool:
        """Restart slurmctld; jobs go on."""
        with self._nothing_starts(self.cluster.nodes):
            self.cluster.restart_slurmctld()
        return True

    def _restart_slurmd(self, _jobs: list[str]) -> bool:
        """Kill a node's slurmd and start it again; its jobs go on."""
        node = self._dice.choice(self.cluster.nodes)
        with self._nothing_starts([node]):
            self.cluster.kill_slurmd(node)
            self.cluster.start_slurmd(node)
        return True

    @contextmanager
    def _nothing_starts(self, nodes: Sequence[str]) -> Iterator[None]:
        """Start no job, and wait until none is about to start on these nodes.

        What slurmctld and slurmd tell each other while one of them is down is lost, also the end of a prolog. The job
        then has no batch script, and Slurm 22.05 notices only when BatchStartTimeout is over.
        """
        self._start_jobs("down")
        try:
            processes.wait_until("no hook and no start", lambda: all(map(self._is_settled, nodes)), SETTLED_S)
            yield
        finally:
            self._start_jobs("up")

    def _start_jobs(self, state: str) -> None:
        for partition in ("main", "ci"):
            self.cluster.admin("scontrol", "update", f"partition={partition}", f"state={state}")

    def _is_settled(self, node: str) -> bool:
        """Return whether a node runs no hook, and a step of each of its jobs."""
        rows = self.cluster.admin("squeue", "--noheader", f"--nodelist={node}", "--states=CF,R,CG", "--format=%A")
        spool = self.cluster.base / "spool" / node
        has_step = all(any(spool.glob(f"{node}_{job}.*")) for job in rows.split())
        return has_step and not processes.children(self.cluster.daemons()[f"slurmd {node}"])


def maintain(site: Site, *arguments: str) -> None:
    """Run `warmstart maintain` as timers do: on each node, in whose namespace its own places are, or for the store."""
    for node in site.cluster.nodes[:1] if arguments else site.cluster.nodes:
        site.command("maintain", "--node", node, *arguments, env=site.cluster.environment)


def _kill(pid: int) -> bool:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return False
    return True
