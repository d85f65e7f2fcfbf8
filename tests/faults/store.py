"""The acts of the store: its operations (tests/lib/store_pairs.py), each alone. `test_orders` runs them in pairs.

A bundle is a JSON text here, and workers run in the process of the act. Whatever fails or dies, readers see what was
there before or what is there after; when the operation was done again, what is there after.
"""

from __future__ import annotations

import json
import re
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest import mock

from tests.faults.acts import LATER_S, Act
from tests.lib import judge
from tests.lib.faults import Done, Fault, Faults
from tests.lib.interleave import restore
from tests.lib.pairs import LATE, ME, TEMPLATE, State, in_process
from tests.lib.store_pairs import GROUPS, version
from warmstart.errors import WarmstartError
from warmstart.store.client import StoreClient

# What changes nothing where nothing is wrong is left out.
READING = {"look up and fetch", "check"}
OPERATIONS = [(group, name) for group, it in GROUPS.items() for name in it.operations if name not in READING]
# What is not wrong: a temporary file in a job's own directory goes with that, and nobody reads the metadata of an image
# that is not there; a tag whose image was evicted is asked anew.
HARMLESS = re.compile(r"/(ending|runs)/.*: was left|there is no such image|its image is not there")


class StoreAct(Act):
    """One operation of a group, on the group's template."""

    def __init__(self, top: Path, group: str, operation: str) -> None:
        self._group = GROUPS[group]
        self._operation = self._group.operations[operation]
        self._template, self._stage = top / TEMPLATE, top / "stage"
        self._template.mkdir(mode=0o755)
        self._stage.mkdir(mode=0o755)
        self._group.make(self._client("n0-template", self._template))
        self.prepare()
        self._start = self._seen()
        assert self.run().status == 0
        self._after = self._seen()

    def _client(self, writer: str, store: Path | None = None) -> StoreClient:
        return StoreClient(ME, str(store or self._stage), writer)

    def _seen(self) -> State:
        return self._group.observe(self._client(""), {})

    def prepare(self) -> None:
        """Bring the stage back."""
        restore(self._template, self._stage)

    def run(self, fault: Fault | None = None, stop_at: int = 0) -> Done:
        """Do the operation; status 1 is an error that it foresees."""
        return self._child(self._operation.act, fault, stop_at)

    def _child(
        self, act: Callable[[StoreClient], object], fault: Fault | None = None, stop_at: int = 0, later: float = LATER_S
    ) -> Done:
        def done() -> int:
            try:
                act(self._client("n1-run1"))
            except (WarmstartError, OSError) as error:
                sys.stderr.write(f"{error}\n")
                return 1
            return 0

        return Faults({"store": str(self._stage)}, fault, stop_at).run(done, {}, later)

    def check(self, done: Done, _fault: Fault | None) -> list[str]:
        """Return what readers see that they may not, and what is left four days later."""
        wrong = [f"taken for a bug: {done.stderr}"] if "Traceback" in done.stderr else []
        wrong += [f"readers see {text}" for text in self._neither(self._seen())]
        self._child(self._operation.act)  # at once, which may be too early
        for act in (self._group.tidy, self._operation.act):
            done = self._child(act, later=2 * LATER_S)
            if done.status != 0:
                wrong.append(f"later it fails: {done.stderr}")
        last = self._seen()
        different = [key for key in {*last, *self._after} if last.get(key) != self._after.get(key)]
        wrong += [f"at last {key} is {last.get(key)}" for key in different]
        return wrong + [problem for problem in judge.store_problems(self._stage) if not HARMLESS.search(problem)]

    def _neither(self, state: State) -> Iterator[str]:
        """Yield what is as it was neither before nor after. What is removed may be gone for a while."""
        for key in {*state, *self._start, *self._after}:
            may_be = {self._start.get(key), self._after.get(key)} | ({None} if self._operation.removes else set())
            if state.get(key) not in may_be and not key.startswith(LATE):
                yield f"{key}={state.get(key)}"


def _listing(bundle: bytes) -> dict[str, tuple[int, str]]:
    """Return what a bundle holds, in place of what unsquashfs(1) says."""
    files = [file for entry, text in json.loads(bundle).items() for file in version(f"{entry}={text}").items()]
    return {path: (file.size, file.sha256) for path, file in files}


@contextmanager
def a_store() -> Iterator[Path]:
    """Give a directory in memory, where workers run in this process."""
    with (
        tempfile.TemporaryDirectory(dir="/dev/shm") as top,
        in_process(),
        mock.patch.object(judge, "_unpacked", _listing),
    ):
        yield Path(top)
