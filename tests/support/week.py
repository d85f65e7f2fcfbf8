"""Days of mixed jobs on a store, in simulated time and without Slurm, with the audit log that hooks would write.

Looking up, fetching, publishing and maintenance are the real code, in this process; a bundle is a text, as in
tests/support/pairs. What a job is, saw and made is as in tools/load.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import random
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timezone
from pathlib import Path
from typing import NamedTuple
from unittest import mock

from tests.support.pairs import ME, memory
from tests.support.store_pairs import compact, fetched
from tools.load.judge import PROFILE, Event, Said, Witness, events
from warmstart.host.deadline import after
from warmstart.policy.compiled import Maintenance
from warmstart.store import blocklist, maintenance
from warmstart.store.blocklist import Block
from warmstart.store.bundles import BundleGone, PublishBlocked
from warmstart.store.client import StoreClient
from warmstart.store.layout import Namespace
from warmstart.store.manifest import Base, Draft, File, Producer, content_digest

DAY_S = 86_400.0
USERS = {"a": 1, "b": 2, "p": 3}  # p publishes for the site
NAMES = 40
RULES = Maintenance(keep=int(3 * DAY_S), per_user=1 << 40, per_account=1 << 40, per_site=1 << 40)
KINDS = ("uses", "uses", "uses", "rewrites", "removes", "starts fresh")


class Running(NamedTuple):
    """A job between its prolog and its epilog."""

    job: int
    user: str
    kind: str
    seeded: dict[str, tuple[str, str]]  # entry → its maker, "USER JOB", and the scope that it is from


class Week:
    """The store, the jobs and their audit log."""

    def __init__(self, top: Path, seed: int) -> None:
        self.lines: list[dict[str, object]] = []
        self.jobs: dict[int, Witness] = {}
        self._store = StoreClient(ME, str(top), "n1-week")
        self._dice = random.Random(seed)
        self._now = time.time()
        self._runs, self._numbers = itertools.count(), itertools.count(1)

    def pass_days(self, days: int, jobs_a_day: int) -> None:
        """Let jobs start and end at random times, a few at once; each night the store is maintained."""
        with self._clock():
            for _ in range(days):
                running: list[Running] = []
                for _ in range(jobs_a_day):
                    self._now += self._dice.expovariate(jobs_a_day / DAY_S)
                    running.append(self._prolog())
                    while len(running) > self._dice.randrange(1, 6):
                        self._epilog(running.pop(self._dice.randrange(len(running))))
                while running:
                    self._epilog(running.pop())
                self._maintain()
                self._block_or_unblock()

    @contextmanager
    def _clock(self) -> Iterator[None]:
        with (
            mock.patch.object(time, "time", self._seconds),
            mock.patch.object(time, "time_ns", self._nanoseconds),
        ):
            yield

    def _seconds(self) -> float:
        return self._now

    def _nanoseconds(self) -> int:
        return int(self._now * 1e6) * 1000

    def history(self) -> tuple[list[Event], dict[int, Witness]]:
        """Return the audit's events, and what jobs said."""
        return events(self.lines), self.jobs

    def _tell(self, event: str, **fields: object) -> None:
        self._now += 0.01
        stamp = datetime.fromtimestamp(self._now, timezone.utc).isoformat(timespec="microseconds")
        self.lines.append({"ts": stamp, "event": event, **fields})

    def _hook(self, hook: str, job: int, user: str) -> dict[str, object]:
        run = {
            "hook": hook,
            "run_id": f"{next(self._runs)}",
            "node": "n1",
            "job_id": job,
            "user": user,
            "uid": USERS[user],
        }
        self._tell("hook.started", **run, partition="ci" if user == "p" else "main")
        return run

    def _scopes(self, user: str) -> list[str]:
        return ["site"] if user == "p" else ["site", f"user-{USERS[user]}-{user}"]

    def _where(self, scope: str) -> Namespace:
        return Namespace(self._store.path, scope, PROFILE, "ns")

    def _prolog(self) -> Running:
        job, user, kind = next(self._numbers), self._dice.choice(list(USERS)), self._dice.choice(KINDS)
        run = self._hook("prolog", job, user)
        self._tell("job.planned", **run, head=True)
        seeded: dict[str, tuple[str, str]] = {}
        scopes: set[str] = set()
        refused = dict[str, str]()
        if kind != "starts fresh":
            offers = self._store.offers(self._scopes(user), PROFILE, "ns", after(60))
            refused = offers.refused
            for offer in offers.offers:
                try:
                    content = fetched(self._store, self._where(offer.scope), offer, files_of)
                except BundleGone:
                    continue
                scopes.add(offer.scope)
                seeded.update({entry: (content[entry], offer.scope) for entry in offer.entries})
                use = maintenance.Use(offer.scope, PROFILE, "ns", offer.bundle, self._now)
                self._store.run(after(60), maintenance.record_uses, [use])
        for bundle, why in refused.items():
            self._tell("bundle.refused", **run, profile=PROFILE, bundle=bundle, reason=why)
        if seeded:
            self._tell("cache.seeded", **run, profile=PROFILE, namespace="ns", scopes=sorted(scopes))
        else:
            self._tell(
                "step.finished", **run, step="seed", cold={PROFILE: "asked-fresh"} if kind == "starts fresh" else {}
            )
        self._tell("hook.finished", **run)
        return Running(job, user, kind, seeded)

    def _epilog(self, running: Running) -> None:
        job, user, kind, seeded = running
        names = [f"e{self._dice.randrange(NAMES)}" for _ in range(3)]
        removed = {name for name in names[:1] if name in seeded and kind in {"rewrites", "removes"}}
        wanted = set(names) - removed if kind == "removes" else set(names)
        made = {name: f"{user} {job}" for name in wanted if name not in seeded or name in removed}
        said = Said(
            frozenset(f"{name} {maker}" for name, (maker, _) in seeded.items()),
            frozenset(f"{name} {maker}" for name, maker in made.items()),
            frozenset(f"{name} {seeded[name][0]}" for name in removed),
            is_whole=True,
        )
        self.jobs[job] = Witness(user, USERS[user], self._now, said)
        run = self._hook("epilog", job, user)
        scope = self._scopes(user)[-1]
        if made or removed:
            self._publish(run, running, scope, made, removed)
        self._tell("hook.finished", **run)

    def _publish(
        self, run: dict[str, object], running: Running, scope: str, made: dict[str, str], removed: set[str]
    ) -> None:
        producer = Producer(running.job, running.user, USERS[running.user], "n1", "c")
        bases = {
            name: Base(seeded_from, content_digest(files_of({name: maker})[name]))
            for name, (maker, seeded_from) in running.seeded.items()
            if name in removed
        }
        draft = Draft(producer, {}, files_of(made), based_on=bases, fresh=running.kind == "starts fresh")
        fd = memory(json.dumps(made).encode())
        try:
            published = self._store.publish(self._where(scope), fd, draft, after(60))
        except PublishBlocked:
            return
        finally:
            os.close(fd)
        if published.bundle:
            where = {"profile": PROFILE, "namespace": "ns", "scope": scope, "bundle": published.bundle}
            self._store.run(
                after(60), maintenance.record_uses, [maintenance.Use(scope, PROFILE, "ns", published.bundle, self._now)]
            )
            self._tell("bundle.published", **run, **where, superseding=len(published.superseding))
            self._tell("cache.harvested", **run, **where, entries=len(made))

    def _maintain(self) -> None:
        """Do what the night's maintenance does: replaced bundles, compaction, and what nobody used for three days."""
        run = {"hook": "maintain", "run_id": f"{next(self._runs)}"}
        self._tell("hook.started", **run)
        for scope in maintenance.scopes(self._store.path):
            where = self._where(scope)
            for names, reason in (
                (
                    self._store.run_in(after(60), maintenance.superseded, where, self._now),
                    "replaced by a compacted bundle",
                ),
                (self._unused(where), maintenance.UNUSED),
            ):
                for bundle in self._store.run_in(after(60), maintenance.remove, where, names):
                    self._tell("bundle.removed", **run, scope=scope, profile=PROFILE, bundle=bundle, reason=reason)
            compact(self._store, where)
        self._tell("hook.finished", **run)

    def _unused(self, where: Namespace) -> list[str]:
        surveyed = self._store.survey(where, after(60))
        return [expired.bundle.bundle for expired in maintenance.expired(surveyed, RULES, self._now)]

    def _block_or_unblock(self) -> None:
        """Block a user one night, and unblock them the next."""
        block = Block(user="b")
        is_blocked = any(known.user == "b" for known in self._store.run(after(60), blocklist.listed))
        change = blocklist.unblock if is_blocked else blocklist.block
        self._store.run(after(60), change, block, self._store.writer)
        self._tell("cache.unblocked" if is_blocked else "cache.blocked", block={"user": "b"})


def files_of(made: dict[str, str]) -> dict[str, dict[str, File]]:
    """Return the files of entries by their makers."""
    return {
        name: {f"{name}.bin": File(len(maker), hashlib.sha256(f"{name} {maker}".encode()).hexdigest(), 17)}
        for name, maker in made.items()
    }
