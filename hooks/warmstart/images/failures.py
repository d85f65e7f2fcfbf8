"""Failures that would not end better if tried again at once, kept for a short time so that waiters hear them.

Without this, N waiters on a name that does not exist would ask the registry one after another. Only what is the same
for all is kept: what a registry said for sure (no such image, no access), and an image that is larger than the policy
lets any be. What may be over soon is not, nor what is a node's, the store's, or one user's (a quota). A failure is
kept beside the images that it is about, and those are asked for with the same credentials by all: the shared ones with
none, private ones in stores of their own (private.py). So one user's 401 is nobody else's.
Runs as the store's owner, in the worker.
"""

from __future__ import annotations

import json
import time
from typing import NamedTuple

from warmstart.errors import UserError, by_code
from warmstart.host.files import read_small
from warmstart.images.layout import CLOCK_SKEW, META
from warmstart.images.published import opened_folder
from warmstart.store.publish import replace

FAILED = "failed"
DEFINITIVE = frozenset({"image-not-found", "image-forbidden", "image-too-large"})
LONGEST_FAILURE = 16384


class RememberedFailure(NamedTuple):
    """A `UserError` by its code and fields."""

    code: str
    fields: dict[str, str]


def remember(store: str, key: str, failure: RememberedFailure, owner: str) -> None:
    """Keep a failure."""
    data = json.dumps({"at": time.time(), **failure._asdict()})
    with opened_folder(store, FAILED) as folder:
        replace(folder, owner, key + META, data.encode())


def recall(store: str, key: str, kept_s: float) -> RememberedFailure | None:
    """Return a failure that is at most `kept_s` seconds old, or None."""
    try:
        with opened_folder(store, FAILED) as folder:
            data = json.loads(read_small(key + META, LONGEST_FAILURE, folder))
        age = time.time() - float(data["at"])
        if -CLOCK_SKEW <= age < kept_s:
            fields = {str(name): str(value) for name, value in data["fields"].items()}
            return RememberedFailure(str(data["code"]), fields)
    except (FileNotFoundError, ValueError, KeyError, TypeError, AttributeError):
        pass  # none, or not what `remember` wrote: as good as none
    return None


def as_error(failure: RememberedFailure) -> UserError | None:
    """Return the error that a kept failure stands for; None if this version does not know it."""
    kind = by_code(failure.code)
    return kind(**failure.fields) if kind is not None and issubclass(kind, UserError) else None
