"""A node that copies models, and a model as huggingface_hub makes it."""

from __future__ import annotations

import hashlib
import os
import subprocess
from pathlib import Path

from tests.lib import command_line
from tests.lib.node import NODE, POLICY, Node
from tests.lib.runs import a_run
from warmstart.audit.log import Log
from warmstart.entry import background
from warmstart.host.deadline import after
from warmstart.host.identity import Identity
from warmstart.policy.shared import SharedPath
from warmstart.queue import Asker, Item, Queue
from warmstart.run import state as runs
from warmstart.wings.models import requests
from warmstart.wings.models.attempts import prune
from warmstart.wings.models.requests import COPIES, ModelRequest
from warmstart.wings.models.shelf import Set, on_node, path_of, take

SMALL = 8  # bytes: what counts as large in these tests
# No accounts of this host.
ALICE, BOB = Identity("ws-model-alice", 64351, 64351), Identity("ws-model-bob", 64352, 64352)


def snapshot(cache: Path, data: bytes, commit: str = "0123abc") -> Path:
    """Make a model in a cache as huggingface_hub does; return its snapshot."""
    top = cache / "models--team--tiny"
    made = top / "snapshots" / commit
    (top / "blobs").mkdir(parents=True, exist_ok=True)
    made.mkdir(parents=True)
    blob = top / "blobs" / hashlib.sha256(data).hexdigest()
    blob.write_bytes(data)
    (made / "model.safetensors").symlink_to(os.path.relpath(blob, made))
    return made


class ModelSite(Node):
    """An installation below `base`, whose node n1 copies models below `base/models`. Needs root."""

    def __init__(self, base: Path) -> None:
        super().__init__(base)
        self.models = base / "models"
        for path in (self.models, base / "shelf"):
            path.mkdir()
        self.policy_of()
        for job in (7, 8):
            Path(self.paths.state, str(job)).mkdir(parents=True, mode=0o700)
            runs.save(self.paths.state, a_run(job_id=job))

    def policy_of(self, **changes: str) -> None:
        text = POLICY.replace("paths: {{", "paths: {{shelf: {base}/shelf, ").format(base=self.base)
        keys = ", ".join(f"{key}: {value}" for key, value in {"prefixes": f"[{self.models}]", **changes}.items())
        command_line.installed(self.base, f"{text}models: {{{keys}}}\n")

    @property
    def shelf(self) -> Path:
        return Path(path_of(self.policy, NODE))

    def model(self, name: str, *data: bytes, user: Identity = ALICE, mode: int = 0o600) -> Path:
        """Make a plain model of a user's, with a file for each of `data`."""
        path = self.models / name
        path.mkdir(exist_ok=True)
        for number, content in enumerate(data):
            file = path / (f"more-{number}.bin" if number else "model.bin")
            file.write_bytes(content)
            file.chmod(mode)
        self.own(path, user)
        return path

    def own(self, path: Path, user: Identity = ALICE) -> None:
        """Make all below a path a user's."""
        subprocess.run(["/bin/chown", "-Rh", f"{user.uid}:{user.gid}", str(path)], check=True)

    def copy(self, model: Path, user: Identity = ALICE, job: int = 7, shared: SharedPath | None = None) -> str:
        """Ask for copies as a prolog does, and run the program that makes them; return its problem, "" if none."""
        self.ask(model, user, job, shared)
        self.run_queue()
        failed = [event for event in self.events("model.copy-failed") if event["model"] == str(model)]
        return str(failed[-1]["error"]["reason"]) if failed and not self.sets(str(model)) else ""

    def ask(self, model: Path, user: Identity = ALICE, job: int = 7, shared: SharedPath | None = None) -> None:
        """Ask for copies as a prolog does."""
        asker = Asker(job, user.uid, user.name, "test")
        requests.ask(self.paths, ModelRequest(str(model), user.gid, asker, shared))

    def run_queue(self) -> None:
        """Make the attempts that are due, in this process, with owners in turn."""
        queue, turns = Queue(self.paths, COPIES), dict[str, int]()
        while due := queue.due():
            item = min(due, key=lambda item: turns.get(item.owner, 0))
            turns[item.owner] = turns.get(item.owner, 0) + 1
            background.main(str(self.base), [COPIES.name, NODE, item.key])

    def waiting(self) -> list[Item]:
        return Queue(self.paths, COPIES).all()

    def prune(self) -> int:
        """Do what maintenance does; return how many sets went."""
        return prune(self.policy, self.paths, Log(self.policy.paths.audit, {"hook": "maintain", "run_id": "0a1b2c3d"}))

    def due(self) -> None:
        """Let the next attempts begin at once."""
        queue = Queue(self.paths, COPIES)
        for item in queue.all():
            queue.hasten(item)

    def sets(self, model: str = "") -> list[Set]:
        return [item for item in on_node(self.policy, self.paths) if model in ("", item.about.model)]

    def take(self, name: str, job: int = 7) -> list[bytes] | None:
        """Take a set for a job; return what its copies have."""
        fd = take(str(self.shelf), name, self.paths, a_run(job_id=job), after(5))
        if fd is None:
            return None
        try:
            return [Path(f"/proc/self/fd/{fd}/{name}").read_bytes() for name in sorted(os.listdir(fd))]
        finally:
            os.close(fd)

    def files(self) -> list[str]:
        return sorted(os.listdir(self.shelf / "files"))
