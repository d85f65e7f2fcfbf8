"""Client for what runs as the import account in a worker: reading a manifest. `base` runs programs."""

from __future__ import annotations

from warmstart.host.deadline import Deadline
from warmstart.host.identity import Identity, confine
from warmstart.host.worker import Worker
from warmstart.images.importers import manifest
from warmstart.images.importers.manifest import ImageManifest

READ_S = 10.0


def read_manifest(identity: Identity, text: str, machine: str, deadline: Deadline) -> ImageManifest:
    """Return what a manifest says for a machine (uname(2)), read by the import account in a sandbox."""
    worker = Worker(identity, "the image's manifest", take=confine)
    return worker.run(deadline.within(READ_S), manifest.read, text, machine)
