"""Scrub: read bundles again, all of their bytes and all of their files, and quarantine what is damaged.

A thirtieth of the store each day, chosen by hash and date, so nothing has to be written down about it.
"""

from __future__ import annotations

from warmstart.host.deadline import Deadline
from warmstart.store.bundles import BundleDamaged
from warmstart.store.layout import Namespace
from warmstart.store.maintenance import Bundle
from warmstart.store.manifest import OTHER_FORMAT, ManifestUnreadable
from warmstart.store.unpack import BundleSelection, RepackSettings, unpacked

DAYS = 30


def is_due(bundle: Bundle, day: int) -> bool:
    """Tell whether a bundle's turn is on this day (`maintenance.today`)."""
    return int(bundle.sha256[:8], 16) % DAYS == day % DAYS


def verify(bench: RepackSettings, where: Namespace, bundle: str, deadline: Deadline) -> str:
    """Return what is wrong with a bundle, "" if nothing is.

    Raises what says nothing about the bundle: `ManifestUnreadable` of another format, `BundleGone`, `StoreFailed`,
    `UnpackFailed`, a program's errors.
    """
    try:
        found = bench.store.manifest(where, bundle, deadline)
        with unpacked(bench, [BundleSelection(where, found, sorted(found.entries))], deadline):
            return ""
    except (BundleDamaged, ManifestUnreadable) as error:
        if isinstance(error, ManifestUnreadable) and str(error.fields["problem"]).startswith(OTHER_FORMAT):
            raise
        return str(error.fields["problem"])
