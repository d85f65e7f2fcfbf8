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
from warmstart.attempts import live
from warmstart.caches.store import bundles, generations
from warmstart.caches.store.layout import Entries, Namespace, content_digest
from warmstart.host.deadline import after
from warmstart.profiles.contract import Profile
from warmstart.run.state import Seeded, SeededBundle
from warmstart.steps import harvest
from warmstart.steps.contract import Context
from warmstart.steps.harvest import Harvested, Options

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
        assert made.sha256
        return Seeded("ns", [SeededBundle(SCOPE, made.sha256, [*given])])

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
        return harvest.harvest(here._replace(run=run), settled_ns or self.now())

    def end(self) -> Harvested:
        """Harvest it as its epilog does once it was harvested while it ran."""
        here = self._now()
        return harvest.run(here._replace(run=here.run._replace(fresh=True)), Options(30))

    def _now(self) -> Context:
        return self.context._replace(deadline=after(60))

    def readers(self) -> dict[str, str]:
        """Return what the next job is given: entry → hash of its content."""
        return {entry: content_digest(files) for entry, files in self._given("toy").items()}

    def contents(self, profile: str) -> dict[str, dict[str, str]]:
        """Return what the next job is given of a profile: entry → path → SHA-256."""
        given = self._given(profile).items()
        return {entry: {path: file.sha256 for path, file in files.items()} for entry, files in given}

    def _given(self, profile: str) -> Entries:
        where = self.where._replace(profile=profile)
        listing, found = generations.read(where), Entries()
        for row, names in zip(listing.rows, listing.names, strict=True):
            entries = bundles.entries(where, row.sha256)
            found |= {entry: entries[entry] for entry in names}
        return found

    def layers(self) -> int:
        """Return how many bundles the next job is given."""
        return len(generations.read(self.where, named=False).rows)

    def close(self) -> None:
        """End the processes of the store's owner."""
