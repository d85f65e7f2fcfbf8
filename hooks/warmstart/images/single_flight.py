"""Single flight: one import of an image for all who want it. Runs as root.

    obtain ─▶ in the store? ─▶ yes: its path                 (all that a warm prolog does)
                   │ no
                   ▼
              ask for a background import and wait           (imports/waiting.py)

A store that fails is asked again, as a registry is, until the deadline (`Site.patience_s`).

Hot path unless the image is missing: only then is what waits loaded, and never what imports. The caller audits.
"""

from __future__ import annotations

import time

from warmstart.errors import StoreError
from warmstart.host.deadline import Deadline
from warmstart.images.query import Obtained, Site, query_by_rules
from warmstart.images.reference import Reference
from warmstart.images.store.layout import ImageQuery
from warmstart.lean import Callable

STORE_FAILED = "store-failed"  # the code of `store.layout.StoreFailed`, which a warm hook need not load
PAUSE_S = 1.0  # between two attempts at a store that fails


def obtain(reference: Reference, site: Site, deadline: Deadline) -> Obtained:
    """Return the image; if it is missing, ask for its import and wait; if the store fails, ask it again.

    Raises `ImageNotFound`, `ImageForbidden` (also those that another import has just had), `RegistryUnreachable`,
    `ImageQuotaExceeded`, `ImportFailed`, `ImageWaitExpired`, `ImageInvalid`, `ImageNotOurs`, `StoreFull`,
    `StoreFailed`, `WorkerSilent`, `ScratchUnusable`, `FileSystemBroken`, `ProgramMissing`, `ProgramTooSlow`,
    `StateFull`, `ImportAbandoned`, `ImageRefused`.
    """
    patience = deadline.within(site.patience_s)
    is_over: Callable[[Deadline], bool] | None = None
    while True:
        try:
            return _obtain(reference, site, deadline)
        except StoreError as error:
            if error.code != STORE_FAILED or patience.left() < PAUSE_S:
                raise
        time.sleep(PAUSE_S)
        is_over = is_over or site.job_end()
        if is_over(deadline):
            from warmstart.images.imports.job_end import JobOver

            raise JobOver(image=reference.canonical())


def _obtain(reference: Reference, site: Site, deadline: Deadline) -> Obtained:
    query, site = query_by_rules(reference, site.rules, site.recipe), site.about(reference)
    image = site.look_up(query, "reused", deadline) or _wait(query, site, deadline)
    # It may have been evicted before its use was recorded.
    if not site.record_use(image.name, deadline) or site.store.find(query, deadline, image.digest):
        return image
    return _wait(query, site, deadline)


def _wait(query: ImageQuery, site: Site, deadline: Deadline) -> Obtained:
    from warmstart.images.imports import waiting

    return waiting.Wait(query, site).until(deadline)
