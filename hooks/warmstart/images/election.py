"""Who imports an image that is not there: the one that has its lock. Runs as the store's owner, in the worker.

The lock is the worker's: when the hook or its worker dies, the kernel frees it and the next one takes over.
It saves work and decides nothing else: publishing bears two producers (design, rule 1). `<key>.producer` is
only what waiters are told.
"""

from __future__ import annotations

import json
import os
from typing import NamedTuple

from warmstart.host.files import read_small, unlink_if_there
from warmstart.images.layout import IMAGES
from warmstart.images.published import opened_folder
from warmstart.store.locks import Held, try_lock
from warmstart.store.publish import replace

LOCKS = "locks"
PRODUCER = ".producer"
LONGEST_CLAIM = 4096
LONGEST_WORD = 80

_held: dict[str, Held] = {}


class Producer(NamedTuple):
    """What a producer says of itself."""

    host: str
    pid: int
    job: int
    since: str  # UTC, ISO 8601
    doing: str = ""  # "" when it has just begun


def begin(store: str, key: str, producer: Producer, owner: str) -> str | None:
    """Become the producer, if nobody is; None when somebody else has the lock.

    Returns why there is no lock although this is the producer, "" if there is one.
    """
    with opened_folder(store, LOCKS, 0o700) as folder:
        held = try_lock(f"{store}/{IMAGES}/{LOCKS}", f"{key}.lock")
        if held is None:
            return None
        _held[key] = held
        try:
            _write(folder, key, producer, owner)
        except OSError:
            _held.pop(key).release()
            raise
    return held.lockless


def announce(store: str, key: str, producer: Producer, owner: str) -> None:
    """Say what the producer does now: its `doing`."""
    with opened_folder(store, LOCKS, 0o700) as folder:
        _write(folder, key, producer, owner)


def end(store: str, key: str) -> None:
    """Let the next one have it, if there is one that still needs it."""
    held = _held.pop(key, None)
    if held is None:
        return
    try:
        with opened_folder(store, LOCKS, 0o700) as folder:
            unlink_if_there(key + PRODUCER, folder)
    finally:
        held.release()


def forget_dead(store: str) -> None:
    """Remove what producers said of themselves that died before they could."""
    with opened_folder(store, LOCKS, 0o700) as folder:
        for name in os.listdir(folder):
            key = name.removesuffix(PRODUCER)
            if key == name or (held := try_lock(f"{store}/{IMAGES}/{LOCKS}", f"{key}.lock")) is None:
                continue
            try:
                unlink_if_there(name, folder)
            finally:
                held.release()


def producer_of(store: str, key: str) -> Producer | None:
    """Return what the producer said of itself; None when nobody knows."""
    try:
        with opened_folder(store, LOCKS, 0o700) as folder:
            data = json.loads(read_small(key + PRODUCER, LONGEST_CLAIM, folder))
        words = (str(word)[:LONGEST_WORD] for word in (data["host"], data["since"], data.get("doing", "")))
        host, since, doing = words
        return Producer(host, int(data["pid"]), int(data["job"]), since, doing)
    except (FileNotFoundError, ValueError, KeyError, TypeError, AttributeError):
        return None


def _write(folder: int, key: str, producer: Producer, owner: str) -> None:
    said = producer._asdict()
    if not producer.doing:
        del said["doing"]
    replace(folder, owner, key + PRODUCER, json.dumps(said).encode(), 0o600)
