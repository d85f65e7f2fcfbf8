"""One load run: submit the jobs in waves, inject faults meanwhile, and see what is left."""

from __future__ import annotations

import os
import random
import re
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from tests.lib import mounts
from tests.lib.accounts import ALICE, STORE
from tests.lib.cluster import Cluster
from tests.lib.registry import Registry, build_image
from tests.lib.reports import write_fragment
from tests.lib.site import Site
from tests.lib.teardown import mounts_below
from tests.lib.wing_load import WRONG
from tools.load import history, judge, story
from tools.load.faults import BREAKS_READING, COSTS_AN_IMAGE, HIDES_IMAGES, UNTOLD, Faults, maintain
from tools.load.front import Front
from tools.load.jobs import (
    DONE,
    IMAGES,
    KINDS,
    NO_COMPONENT,
    NO_IMAGE,
    OF_WINGS,
    POLICY,
    PROFILES,
    RULES,
    WITHOUT,
    Job,
    mix,
)
from tools.load.judge import Judged
from tools.load.resources import left
from tools.load.story import Call, Ended
from warmstart.caches.store import bundles, gc
from warmstart.caches.store.layout import Namespace
from warmstart.host.deadline import after
from warmstart.host.identity import Identity
from warmstart.images.store.published import REMEMBERED_S
from warmstart.paths import Installation
from warmstart.store.client import StoreClient
from warmstart.store.layout import StoreFailed

WAVE = 80  # submissions
CALM = 8  # the last jobs of a wave are left alone: it would not end while they are requeued
POLL_S = 2.0
WAVE_S = 600.0
HELD = "BeginTime"  # why a requeued job is pending until two minutes after its epilog
LATER_S = 4 * 86400  # after which maintenance takes what killed publishers left
_ENDED = {"COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "OUT_OF_MEMORY", "BOOT_FAIL", "DEADLINE"}


class Submitted(NamedTuple):
    """A job that was submitted: what it is, which faults fell into its waves, whether its image was in the store."""

    job: Job
    faults: set[str]
    had_image: bool = False
    remembered: frozenset[str] = frozenset()  # faults of waves before, whose failures may be remembered


class Outcome(NamedTuple):
    """What a load run saw."""

    jobs: int
    seed: int
    seconds: float
    kinds: dict[str, int]
    faults: dict[str, int]
    calls: list[Call]
    events: int  # in the audit log
    printed: int  # those that could be written nowhere
    judged: list[Judged]
    findings: list[str]


@contextmanager
def prepared() -> Iterator[tuple[Site, Registry, Front]]:
    """Yield a site whose store and nodes' states are on small file systems, its registry and what is before it."""
    with Cluster() as cluster, Registry(cluster.base) as registry, Front(registry.url) as front, ExitStack() as mounted:
        var = Path(Installation(str(cluster.prefix)).var)
        for place, size in ((cluster.base / "store", "600m"), *((var / node, "150m") for node in cluster.nodes)):
            place.parent.mkdir(parents=True, exist_ok=True)
            mounted.enter_context(mounts.tmpfs(place, size, 200_000))
        try:
            yield Site(cluster, front.url), registry, front
        except BaseException:
            cluster.keep_logs()
            raise
        finally:
            cluster.stop()


class Load:
    """A run of `number` jobs on a site whose hooks are watched."""

    def __init__(self, site: Site, registry: Registry, front: Front, number: int, seed: int) -> None:
        self._site, self._registry, self._front = site, registry, front
        self._number, self._seed = number, seed
        self._dice = random.Random(seed)
        self._log = site.cluster.base / "log" / "hooks"
        self._faults = Faults(site, registry, front, seed, self._log)
        self._submitted: dict[int, Submitted] = {}  # by the id that sbatch gave
        self._ended: dict[str, Ended] = {}  # by the id that squeue shows: 7, 7_1, 7+1
        self._held: dict[int, Submitted] = {}  # those that were requeued, and wait for a later wave
        self._images: list[str] = []
        self._digests: dict[str, str] = {}  # by image
        self._past: list[tuple[float, set[str]]] = []  # the faults of each wave, and when it had ended
        self._stuck: list[str] = []
        self._mounted = {*mounts_below(site.cluster.base)}  # when no job has run yet
        self._said: dict[int, judge.Said] = {}  # by job
        self._ends_early = False

    @property
    def cluster(self) -> Cluster:
        """The cluster."""
        return self._site.cluster

    def end_early(self) -> None:
        """Submit no further wave; the figures are of the jobs so far."""
        self._ends_early = True

    def run(self, say: Callable[[str], None]) -> Outcome:
        """Run all jobs, then maintenance. `say` is told of each wave."""
        began = time.monotonic()
        story.watch(self._site, self._log)
        self._policy()
        for _ in range(IMAGES):
            self._new_image()
        jobs = mix(self._number, self._seed, self._images)
        while not self._ends_early and (wave := [job for _, job in zip(range(WAVE), jobs, strict=False)]):
            self._wave(wave)
            say(f"{len(self._ended)} jobs, {time.monotonic() - began:.0f} s")
            self._new_image()
        self._wave([])
        outputs = self._outputs()
        seen = story.calls(self._log)
        judged = [
            Judged("jobs ended as they should, or were told the cause", len(self._ended), outputs),
            *self._judged(seen),
        ]
        self._maintain_to_the_end()
        leftovers = left(self._site, self._mounted)
        lines, printed = self._site.audit(), story.printed(self._log)
        told = sorted([*lines, *printed], key=lambda line: str(line["ts"]))
        known = story.reissued({node: self.cluster.slurmd_log(node) for node in self.cluster.nodes})
        gaps = story.gaps(seen, told, self._ended.values(), self._faults.off, known)
        drained = [f"drained: {node}" for node in self.cluster.drained()]
        drained += [f"{line['event']}: {line}" for line in lines if line["event"] == "node.drained"]
        judged += [
            Judged("hooks that Slurm started have their story in the audit, or in syslog", len(seen), gaps),
            Judged("nodes were neither drained nor switched off", len(self.cluster.nodes), drained),
        ]
        findings = [*self._stuck, *self._faults.failed, *self._unheard(), *story.tracebacks(self._log)]
        findings += [line for one in judged for line in one.wrong] + leftovers
        return Outcome(
            jobs=sum(KINDS[one.job.kind].tasks for one in self._submitted.values()),
            seed=self._seed,
            seconds=time.monotonic() - began,
            kinds=dict(Counter(one.job.kind for one in self._submitted.values())),
            faults=dict(self._faults.injected),
            calls=seen,
            events=len(lines),
            printed=len(printed),
            judged=judged,
            findings=findings,
        )

    def _policy(self) -> None:
        """Put the policy in force. Jobs wait long for an image: on a slow machine, too, only faults cost one."""
        self._site.write_policy(POLICY.format(profiles=PROFILES, rules=RULES))
        policy = self._site.etc / "policy.yaml"
        text = policy.read_text().replace("wait: 60s", "wait: 4m")
        policy.write_text(text.replace("tag_ttl: 24h", "tag_ttl: 5s"))  # so that most jobs ask the registry again

    def _wave(self, wave: list[Job]) -> None:
        """Submit some jobs and see them end, but for those that Slurm holds: they end in a later wave.

        Nobody lets a requeued job start earlier: a slurmd that knows it would run no prolog.
        """
        faults: set[str] = set()
        self._faults.in_wave = faults
        mine = dict(self._held)
        lately = (before for ended, before in self._past if time.monotonic() - ended < REMEMBERED_S)
        remembered = frozenset().union(*lately)
        for job in wave:
            had_image = self._is_stored(job.image)
            mine[self._submit(job)] = Submitted(job, set(), had_image, remembered)
            if self._dice.random() < 0.2:
                self._faults.inject(list(self._open(mine)))
        self._submitted |= mine
        end = time.monotonic() + WAVE_S
        may_wait = {HELD} if wave else set()
        while not may_wait.issuperset((waiting := self._open(mine)).values()):
            if time.monotonic() > end:
                self._stuck += [f"job {shown} ({mine[_submission(shown)].job.kind}) does not end" for shown in waiting]
                self.cluster.admin("scancel", *waiting)
                faults.add("a job cancelled")
                end = float("inf")
            if len(waiting) > CALM and self._dice.random() < 0.5:
                self._faults.inject(list(waiting))
            time.sleep(POLL_S)
        self._held = {number: mine[number] for number in map(_submission, waiting)}
        for submitted in mine.values():
            submitted.faults.update(faults)
        self.cluster.wait_idle(300)
        self._site.wait_imports(120)
        self._past.append((time.monotonic(), faults))

    def _submit(self, job: Job) -> int:
        while True:
            try:
                return self.cluster.submit(job.script, job.user, *job.options)
            except RuntimeError as error:  # slurmctld is starting again
                if not re.search("Unable to contact|Socket timed out", str(error)):
                    raise

    def _open(self, mine: dict[int, Submitted]) -> dict[str, str]:
        """Ask slurmctld for all jobs. Note those that have ended; return why each of these others is pending, by id."""
        rows = self.cluster.admin("squeue", "--noheader", "--states=all", "--array", "--format=%i|%A|%T|%N|%r")
        waiting = {}
        for row in rows.splitlines():
            shown, job, state, nodes, reason = row.split("|")
            if _submission(shown) not in mine:
                continue
            if state in _ENDED:
                self._ended[shown] = Ended(int(job), state, _hosts(nodes))
            else:
                self._ended.pop(shown, None)
                waiting[shown] = reason
        return waiting

    def _new_image(self) -> None:
        number = len(list((self.cluster.base / "images").glob("load*")))
        directory = self.cluster.base / "images" / f"load{number}"
        layout = build_image(directory, {"/etc/number": f"{number}\n"})
        name = f"test/load{number}"
        digest = self._registry.push(layout, "latest", f"{name}:1")
        image = f"{self._front.url}/{name}{f'@{digest}' if number % 3 == 2 else ':1'}"
        self._digests[image] = digest
        self._images.append(image)
        del self._images[:-IMAGES]

    def _is_stored(self, image: str) -> bool:
        """Return whether an image and its metadata are in the store. Nothing evicts it in a run."""
        name = self._digests.get(image, "none").removeprefix("sha256:")
        return {path.suffix for path in self._site.store.glob(f"images/*{name}*")} >= {".json", ".sqsh"}

    def _outputs(self) -> list[str]:
        """Return what differs from what each job should have said and how it should have ended."""
        found = []
        for shown, end in self._ended.items():
            submitted = self._submitted[_submission(shown)]
            path = self.cluster.account(submitted.job.user).home / f"slurm-{end.job}.out"
            output = path.read_text(errors="replace") if path.is_file() else ""
            if "+" in shown and not shown.endswith("+0"):
                output = f"{DONE}\n"  # the leader's script speaks for all components
            is_second = "+" in shown and not shown.endswith("+0")  # it says nothing of its entries
            self._said[end.job] = judge.Said.of("" if is_second else output)
            if problem := wrong_end(submitted, end.state, output):
                found.append(f"job {shown} ({submitted.job.kind}, {end.state}): {problem}")
        return found

    def _judged(self, seen: list[Call]) -> list[Judged]:
        began = {call.job: call.at for call in seen if call.hook == "prolog"}  # the last one
        jobs = {}
        for shown, end in self._ended.items():
            user = self.cluster.account(self._submitted[_submission(shown)].job.user)
            said = self._said[end.job]
            jobs[end.job] = judge.Witness(user.name, user.uid, began.get(end.job, 0.0), said)
        audit = judge.events([*self._site.audit(), *story.printed(self._log)])
        return [*judge.judged(audit, jobs, self._site.store, ALICE), *history.judged(audit, jobs, self._faults.damaged)]

    def _unheard(self) -> list[str]:
        """Return the jobs whose end slurmctld did not tell. It keeps no record of a task cancelled before it began."""
        ended = Counter(map(_submission, self._ended))
        found = []
        for number, (job, faults, *_) in self._submitted.items():
            lost = KINDS[job.kind].tasks - ended[number]
            if lost and not (job.kind == "array" and "a job cancelled" in faults):
                found.append(f"job {number} ({job.kind}): no end of {lost}")
        return found

    def _maintain_to_the_end(self) -> None:
        """Run maintenance as four days later: nobody has used any copy since."""
        then = time.time() - LATER_S
        for path in self._site.var.glob("*/bundles/*"):
            os.utime(path, (then, then))
        for arguments in ((), ("--store",), ()):
            maintain(self._site, *arguments)
            self._site.wait_imports(120)
        owner, store = self.cluster.account(STORE), str(self._site.store)
        later, deadline = time.time() + LATER_S, after(120)
        client = StoreClient(Identity(STORE, owner.uid, owner.gid), store, "load")  # it goes by ctime
        client.run(deadline, gc.sweep_top, later)
        for path in self._site.store.glob("caches/*/*/*"):
            with suppress(StoreFailed):  # a torn listing; nothing of that namespace is swept
                client.worker.run(deadline, bundles.sweep, Namespace(store, *path.parts[-3:]), later)


def wrong_end(submitted: Submitted, state: str, output: str) -> str:
    """Return what is wrong with the way in which a job ended, "" if nothing is."""
    job, faults, had_image, remembered = submitted
    off, told = bool(faults & UNTOLD), "warmstart: " in output
    without = not job.image or off  # a job that asks for an image does not run without it
    is_owed = had_image and not faults & HIDES_IMAGES
    wrong = [line for line in output.splitlines() if line.startswith(WRONG)]
    excused = {
        NO_IMAGE: BREAKS_READING,  # the store may go while a job runs
        NO_COMPONENT: UNTOLD,
        **{line: faults for wing in OF_WINGS for line, faults in wing.excused.items()},
    }
    if unexcused := [line for line in wrong if not faults & excused.get(line, set())]:
        return unexcused[0]
    costly = bool(faults & COSTS_AN_IMAGE)
    fine = (
        state == "CANCELLED" and "a job cancelled" in faults,
        state == "COMPLETED" and costly and without and output.endswith(f"{WITHOUT}\n") and (told or off),
        state == "FAILED" and costly and bool(job.image) and job.image in output and not is_owed,
        state == "FAILED" and bool(job.refused) and job.refused in output,
        state == job.ends and not job.refused and output.endswith(f"{DONE}\n"),
    )
    if line := judge.untrue(output, faults | remembered):
        return f"it was told {line!r} after {sorted(faults)}"
    return "" if any(fine) else f"it was to end {job.ends}, and said {output!r}"


def _submission(shown: str) -> int:
    """Return the id that sbatch gave: of an array or a heterogeneous job, the first part."""
    found = re.match(r"\d+", shown)
    assert found is not None, shown
    return int(found[0])


def _hosts(nodes: str) -> tuple[str, ...]:
    """Expand what squeue writes of four nodes: `n3`, `n[1-2,4]`."""
    match = re.fullmatch(r"n\[(.+)\]", nodes)
    if match is None:
        return (nodes,) if nodes else ()
    parts = (part.partition("-") for part in match[1].split(","))
    return tuple(f"n{n}" for low, _, high in parts for n in range(int(low), int(high or low) + 1))


def record(outcome: Outcome) -> None:
    """Keep the figures."""
    write_fragment("load.md", fragment(outcome))


def fragment(outcome: Outcome) -> str:
    """Return the run's figures as a part of a Markdown page."""
    faults = ", ".join(f"{count} {name}" for name, count in sorted(outcome.faults.items()))
    found = "".join(f"- {line}\n" for line in outcome.findings) or "Nothing was left, drained or untold.\n"
    return (
        f"{outcome.jobs} jobs of {len(outcome.kinds)} kinds and of two users on four nodes (seed {outcome.seed}), "
        f"{outcome.seconds / 60:.0f} minutes, {len(outcome.calls)} hooks, "
        f"{outcome.events} audit lines, {outcome.printed} of them printed, as nothing could be written.\n\n"
        f"Faults: {faults}.\n\n{_judgement(outcome.judged)}\n{found}"
    )


def _judgement(judged: Sequence[Judged]) -> str:
    rows = "".join(f"| {one.what} | {one.of} | {len(one.wrong)} |\n" for one in judged)
    return f"| judged | looked at | wrong |\n| --- | --- | --- |\n{rows}"
