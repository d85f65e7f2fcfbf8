"""The producer's part of a single flight: everything between the lock and the published image.

Never on a warm hook's path. Order and why: the lock's holder looks again, because the one before it may have
just published; a definitive failure is written down before the lock goes, so that the next holder finds it.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any

from warmstart.errors import UserError, WarmstartError
from warmstart.host.deadline import Deadline, after
from warmstart.host.worker import Worker
from warmstart.images import election, failures, possession, publishing, scratch, validity
from warmstart.images.flight import Obtained, Site, Wanted, find
from warmstart.images.importers import contract  # as_error finds a remembered failure's class by its code
from warmstart.images.reference import Reference
from warmstart.store.layout import store_errors

assert contract.ImageNotFound.code  # noqa: S101

CLEAN_UP_S = 5.0
