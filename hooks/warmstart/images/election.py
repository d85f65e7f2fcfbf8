"""Who imports an image that is not there: the one that has its lock. Runs as the store's owner, in the worker.

The lock is the worker's: when the hook or its worker dies, the kernel frees it and the next one takes over.
It saves work and decides nothing else: publishing bears two producers (design, rule 1). `<key>.producer` is
only what waiters are told.
"""

from __future__ import annotations

import json
from typing import Any

from warmstart.host.files import read_small, unlink_if_there
from warmstart.images.lookup import IMAGES
from warmstart.images.publishing import opened_folder
from warmstart.store.locks import Held, try_lock
from warmstart.store.publish import replace

LOCKS = "locks"
LONGEST = 4096

_held: dict[str, Held] = {}


def begin(store: str, key: str, producer: dict[str, Any], owner: str) -> bool:
    """Become the producer, if nobody is; `producer` says host, pid, job and since when."""
    with opened_folder(store, LOCKS, 0o700) as folder:
        held = try_lock(f"{store}/{IMAGES}/{LOCKS}", f"{key}.lock")
        if held is None:
            return False
        _held[key] = held
        try:
            replace(folder, owner, f"{key}.producer", json.dumps(producer).encode(), 0o600)
        except OSError:
            _held.pop(key).release()
            raise
    return True


def end(store: str, key: str) -> None:
    """Let the next one have it, if there is one that still needs it."""
    held = _held.pop(key, None)
    if held is None:
        return
    try:
        with opened_folder(store, LOCKS, 0o700) as folder:
            unlink_if_there(f"{key}.producer", folder)
    finally:
        held.release()


def producer_of(store: str, key: str) -> dict[str, Any]:
    """Return what the producer said of itself; {} when nobody knows."""
    try:
        with opened_folder(store, LOCKS, 0o700) as folder:
            data = json.loads(read_small(f"{key}.producer", LONGEST, folder))
    except (FileNotFoundError, ValueError):
        return {}
    return data if isinstance(data, dict) else {}
