"""Client for what runs as the import account in a worker: resolving a tag, reading a manifest. `base` runs programs."""

from __future__ import annotations

from typing import NamedTuple

from warmstart.host.deadline import Deadline
from warmstart.host.identity import Identity, WorkerSilent
from warmstart.host.worker import Worker
from warmstart.images.importers import manifest, registry
from warmstart.images.importers.base import RegistryUnreachable
from warmstart.images.importers.egress import Reach
from warmstart.images.importers.manifest import Manifest
from warmstart.images.reference import Reference

SHORTEST_S = 0.1
READ_S = 10.0


class ImportUserClient(NamedTuple):
    """Operations that run as the import account; each call has a worker of its own."""

    identity: Identity

    def ask_endpoint(self, reference: Reference, *, plain: bool, reach: Reach, deadline: Deadline) -> str:
        """Return the digest of a tag. `plain`: without TLS. Raises what `Importer.resolve` raises."""
        seconds = max(deadline.left(), SHORTEST_S)
        try:
            with Worker(self.identity) as worker:
                return worker.run(deadline, registry.ask, reference, plain=plain, hosts=reach.hosts, seconds=seconds)
        except WorkerSilent as error:
            raise RegistryUnreachable(image=reference.canonical(), problem="no answer in time") from error

    def read_manifest(self, text: str, machine: str, deadline: Deadline) -> Manifest:
        """Return what a manifest says for a machine (uname(2)), read in a sandbox."""
        with Worker(self.identity, confine=True) as worker:
            return worker.run(deadline.within(READ_S), manifest.read, text, machine)
