"""A store with real bundles and an installation in this process, for tests of maintenance. No Slurm, but needs root."""

from __future__ import annotations

import hashlib
import os
import pwd
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from unittest import mock

from tests.lib.bundles import add_offered
from tests.lib.command_line import answer, installed, run
from warmstart.harvest.pack import pack
from warmstart.host.deadline import after
from warmstart.host.identity import Identity
from warmstart.slurm import commands
from warmstart.store.bundles import Offer
from warmstart.store.client import StoreClient
from warmstart.store.layout import Namespace
from warmstart.store.manifest import Draft, File, Producer

POLICY = """\
version: 1
paths: {{workspace: {base}/workspace, store: {base}/store, audit: {base}/audit/audit.jsonl, scontrol: {scontrol}}}
store_user: daemon
import_user: bin
validate_user: sys
rules:
  - name: everyone
    profiles: [numba]
{more}
"""
OWN_JOBS = 90_000_000
MTIME_NS = 1_700_000_000_000_000_007
Content = Mapping[str, bytes]


class MaintenanceSite:
    """An installation below `base`, whose store belongs to the account daemon."""

    def __init__(self, base: Path, more: str = "", scontrol: str = "/usr/bin/scontrol") -> None:
        """`more` are keys of the policy besides the paths and accounts."""
        self.base = base
        self.owner = Identity("daemon", *pwd.getpwnam("daemon")[2:4])
        self.store = base / "store"
        self.store.mkdir(exist_ok=True)
        os.chown(self.store, self.owner.uid, self.owner.gid)
        self.installation = installed(base, POLICY.format(base=base, more=more, scontrol=scontrol))
        self._bundles = 0

    def client(self) -> StoreClient:
        """Return a client of the store."""
        return StoreClient(self.owner, str(self.store), "n1-test")

    def command(self, *arguments: str) -> int:
        """Run the command line. Return its exit status.

        Other tests run clusters on this host at the same time, whose jobs have small ids, too: of the step daemons that
        are found only those of ids from `OWN_JOBS` on count.
        """
        own = frozenset(job for job in commands.with_daemons() if job >= OWN_JOBS)
        with mock.patch.object(commands, "with_daemons", return_value=own):
            return run(self.installation, *arguments).exit_code

    def json(self, *arguments: str) -> Any:  # noqa: ANN401 - JSON
        """Run the command line with --json. Return the value that it printed."""
        return answer(self.installation, *arguments)

    def events(self, event: str) -> list[dict[str, Any]]:
        """Return the audit log's events of one kind."""
        import json

        log = self.base / "audit" / "audit.jsonl"
        lines = [json.loads(line) for line in log.read_text().splitlines()]
        return [line for line in lines if line["event"] == event]

    def namespace(self, scope: str = "user-1-a") -> Namespace:
        """Return the namespace that `publish` uses."""
        return Namespace(str(self.store), scope, "numba", "ns")

    def directory(self, scope: str = "user-1-a") -> Path:
        """Return that namespace's directory."""
        return Path(self.namespace(scope).path)

    def draft(self, entries: Mapping[str, Content], user: str = "a", uid: int = 1) -> Draft:
        """Return the draft of a manifest with these entries."""
        files = {
            entry: {path: File(len(data), hashlib.sha256(data).hexdigest(), MTIME_NS) for path, data in content.items()}
            for entry, content in entries.items()
        }
        return Draft(Producer(7, user, uid, "n1", "c"), {"cpu": "x"}, files)

    def packed(self, entries: Mapping[str, Content]) -> int:
        """Pack entries into a real bundle. Return its descriptor."""
        self._bundles += 1
        stage = self.base / f"stage-{self._bundles}"
        for content in entries.values():
            for path, data in content.items():
                (stage / path).parent.mkdir(parents=True, exist_ok=True)
                (stage / path).write_bytes(data)
                os.utime(stage / path, ns=(MTIME_NS, MTIME_NS))
        return pack(str(stage), f"{stage}.sqsh", after(20))

    def publish(self, entries: Mapping[str, Content], *, scope: str = "user-1-a", user: str = "a", uid: int = 1) -> str:
        """Publish a real bundle. Return its id."""
        fd = self.packed(entries)
        try:
            with self.client() as client:
                made = client.publish(self.namespace(scope), fd, self.draft(entries, user, uid), after(20))
        finally:
            os.close(fd)
        return str(made.bundle)

    def offers(self, *scopes: str) -> list[Offer]:
        """Return what a job with these scopes is offered."""
        with self.client() as client:
            return client.offers(list(scopes or ("user-1-a",)), "numba", "ns", after(20)).offers

    def seen(self, *scopes: str) -> dict[str, str]:
        """Return each offered entry's bundle. Checks that no entry is offered twice and every bundle is whole."""
        found: dict[str, str] = {}
        with self.client() as client:
            for offer in client.offers(list(scopes or ("user-1-a",)), "numba", "ns", after(20)).offers:
                fd = os.memfd_create("copy")
                try:
                    where = self.namespace(offer.scope)
                    files = client.fetch(where, offer, after(20), into=fd)
                finally:
                    os.close(fd)
                add_offered(found, offer, files)
        return found


def one(entry: str, data: bytes = b"x") -> dict[str, dict[str, bytes]]:
    """Return an entry with one file."""
    return {entry: {f"{entry}.nbi": data}}
