"""A job that runs, whose cache is harvested meanwhile: by whoever runs the tests, in a store of its own.

The cache is a plain directory, as of a cold job. One profile, `toy`: each directory is an entry, of any content.
"""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path

from tests.lib import packed
from tests.lib.packed import MTIME_NS
from tests.lib.runs import a_context, changed
from warmstart.harvest import live
from warmstart.host.deadline import after
from warmstart.profiles.contract import Profile
from warmstart.run import state
from warmstart.run.state import Seeded, SeededBundle
from warmstart.steps import harvest
from warmstart.steps.contract import Context
from warmstart.steps.harvest import Harvested, Limits, Options
from warmstart.store import bundles, index
from warmstart.store.layout import Namespace
from warmstart.store.manifest import content_digest

SCOPE = "user-64201-ws-alice"
TOY = Profile({"TOY": "{dir}"}, {"*/": []}, relocation="relocatable", name="toy")
TICK_S = 0.012  # longer than the kernel's clock for ctimes takes to go on


class LiveJob:
    """A run on a node beside a store. Call `close` in the end."""

    def __init__(self, root: Path, given: dict[str, str] | None = None) -> None:
        """`given` is what the job was seeded with, by extraction: entry → content."""
        (root / "store").mkdir(parents=True)
        self.root = root
        context = a_context(root)
        self.where = Namespace(context.store.path, SCOPE, "toy", "ns")
        seeded = self._seeded(given or {})
        record = changed(context.run, publish_scope=SCOPE, seeded={"toy": seeded}, facts={"cpu": "x"}, live=True)
        policy = context.policy._replace(profiles=(TOY,), harvest=context.policy.harvest._replace(while_running=900))
        self.context: Context = context._replace(run=record, policy=policy)
        self.cache = Path(record.directory, "cache", "toy")
        self.cache.mkdir(parents=True)
        for entry, content in (given or {}).items():
            self.write(entry, content)
            os.utime(self.cache / entry / "f", ns=(MTIME_NS, MTIME_NS))

    def _seeded(self, given: dict[str, str]) -> Seeded:
        if not given:
            return Seeded("ns", [])
        entries = {entry: {f"{entry}/f": content.encode()} for entry, content in given.items()}
        made = packed.publish(self.root, self.where, entries)
        assert made.bundle
        return Seeded("ns", [SeededBundle(SCOPE, made.bundle, made.sha256, [*given])])

    def write(self, entry: str, content: str) -> None:
        """Have the job write an entry, as tools do: beside it, and then in its place."""
        (self.cache / entry).mkdir(exist_ok=True)
        (self.cache / entry / "f.tmp").write_text(content)
        (self.cache / entry / "f.tmp").rename(self.cache / entry / "f")

    def remove(self, entry: str) -> None:
        """Have the job remove an entry, if it is there."""
        shutil.rmtree(self.cache / entry, ignore_errors=True)

    def now(self) -> int:
        """Return a time after all that the job has done, and before all that it does from here on."""
        time.sleep(TICK_S)
        moment = time.time_ns()
        time.sleep(TICK_S)
        return moment

    def look(self, settled_ns: int = 0) -> Harvested:
        """Harvest it while it runs, what has not changed since, as the background does."""
        here = self._now()
        run = live.chosen(here.policy, here.run)
        limits = Limits(1 << 30, after(30), 30, settled_ns or self.now())
        done = harvest.harvest(here._replace(run=run), limits)
        os.makedirs(f"{here.paths.state}/{run.job_id}", exist_ok=True)
        state.save(here.paths.state, self.context.run)
        live.note(here.paths, run, done.bundles)
        noted = state.load(here.paths.state, run.job_id)
        assert noted
        self.context = self.context._replace(run=noted)
        return done

    def end(self) -> Harvested:
        """Harvest it as its epilog does."""
        return harvest.run(self._now(), Options(30))

    def _now(self) -> Context:
        return self.context._replace(deadline=after(60))

    def readers(self) -> dict[str, str]:
        """Return what the next job is offered: entry → hash of its content."""
        found: dict[str, str] = {}
        for offer in bundles.offers(self.where.store, [SCOPE], "toy", "ns", "n1-test").offers:
            manifest = bundles.read_manifest(self.where, offer.bundle)
            found |= {entry: content_digest(manifest.entries[entry]) for entry in offer.entries}
        return found

    def contents(self, profile: str) -> dict[str, dict[str, str]]:
        """Return what the next job is offered of a profile: entry → path → SHA-256."""
        where, found = self.where._replace(profile=profile), dict[str, dict[str, str]]()
        for offer in bundles.offers(where.store, [SCOPE], profile, "ns", "n1-test").offers:
            entries = bundles.read_manifest(where, offer.bundle).entries
            for entry in offer.entries:
                found[entry] = {path: file.sha256 for path, file in entries[entry].items()}
        return found

    def layers(self) -> int:
        """Return how many bundles the next job is offered."""
        return len(bundles.offers(self.where.store, [SCOPE], "toy", "ns", "n1-test").offers)

    def listed(self) -> int:
        """Return how many bundles the namespace has, those too that nobody takes anything from."""
        return len(index.read(self.where.path, "").bundles)

    def close(self) -> None:
        """End the processes of the store's owner."""
        self.context.store.close()
