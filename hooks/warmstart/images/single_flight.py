"""Single flight: one import of an image for all who want it. Runs as root.

    obtain ─▶ in the store? ─▶ yes: its path                 (all that a warm prolog does)
                   │ no
                   ▼
              ask for a background import and wait           (imports/waiting.py)

Hot path unless the image is missing: only then is what waits loaded, and never what imports. The caller audits.
"""

from __future__ import annotations

from warmstart.host.deadline import Deadline
from warmstart.images.query import Obtained, Site, query_by_rules
from warmstart.images.reference import Reference
from warmstart.images.store.layout import ImageQuery


def obtain(reference: Reference, site: Site, deadline: Deadline) -> Obtained:
    """Return the image; if it is missing, ask for its import and wait.

    Raises `ImageNotFound`, `ImageForbidden` (also those that another import has just had), `RegistryUnreachable`,
    `ImageQuotaExceeded`, `ImportFailed`, `ImageWaitExpired`, `ImageInvalid`, `ImageNotOurs`, `StoreFull`,
    `StoreFailed`, `WorkerSilent`, `ScratchUnusable`, `ScratchBroken`, `ProgramMissing`, `ProgramTooSlow`, `StateFull`,
    `StateUnusable`, `ImportAbandoned`, `ImageRefused`.
    """
    query, site = query_by_rules(reference, site.rules, site.recipe), site.about(reference)
    image = site.find_intact(query, deadline) or _wait(query, site, deadline)
    # It may have been evicted before its use was recorded.
    if not site.record_use(image.name, deadline) or site.store.find(query, deadline, image.digest):
        return image
    return _wait(query, site, deadline)


def _wait(query: ImageQuery, site: Site, deadline: Deadline) -> Obtained:
    from warmstart.images.imports import waiting

    return waiting.Wait(query, site).until(deadline)
