"""Client for what runs as the import account in a worker: resolving a tag. Its programs are run by `base`."""

from __future__ import annotations

from typing import NamedTuple

from warmstart.host.deadline import Deadline
from warmstart.host.identity import Identity, WorkerSilent
from warmstart.host.worker import Worker
from warmstart.images.importers import registry
from warmstart.images.importers.base import RegistryUnreachable
from warmstart.images.importers.egress import Reach
from warmstart.images.reference import Reference

SHORTEST_S = 0.1


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
