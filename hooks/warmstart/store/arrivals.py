"""Take a bundle of an export into this store: nothing of it is believed (threats, row 5; design, rule 3).

Its squashfs is unpacked under the validator's uid, compared with its manifest file by file, judged by its profile's
validator and packed anew by root; only what root packed is published. Entries that are here already stay as they are.
"""

from __future__ import annotations

import os
import pwd
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from typing import NamedTuple

from warmstart.host.deadline import Deadline
from warmstart.host.files import opened_dir
from warmstart.profiles.client import Validator
from warmstart.profiles.defined import DefinedProfile
from warmstart.repack.merge import origin, publish_stage
from warmstart.repack.transfer import ExportDamaged, ExportRefused, Item, Reader
from warmstart.store import bundles, manifest
from warmstart.store.layout import MANIFEST, Namespace
from warmstart.store.manifest import Draft, Manifest
from warmstart.store.stage import Stage
from warmstart.store.unpack import BundleSelection, RepackSettings, unpacked


class ReceiveSettings(NamedTuple):
    """Where things are taken in, and as whom."""

    bench: RepackSettings
    profiles: Sequence[DefinedProfile]  # of the policy


class Received(NamedTuple):
    """What became of one bundle of an export."""

    bundle: str | None  # its id here; None: nothing of it is new
    entries: int  # published
    known: int  # were here already
    rejected: dict[str, str]  # entry → why its validator did not take it


def destination(store: str, item: Item, to: str | None, namespace: str | None) -> Namespace:
    """Return where a bundle goes; `ExportRefused` for a scope that nobody named, or whose user is not on this node."""
    scope = to or item.scope
    kind, _, rest = scope.partition("-")
    if kind == "user":
        uid, _, name = rest.partition("-")
        if not _is_user(name, uid):
            raise ExportRefused(path=item.path, problem=f"{scope} is no user of this cluster; name the scope with --to")
    elif to is None:
        raise ExportRefused(path=item.path, problem=f"its scope is {scope}: name it with --to if others may run it")
    elif kind not in ("account", "site") or (kind == "site") == bool(rest):
        raise ExportRefused(path=to, problem="no scope: user-UID-NAME, account-NAME or site")
    return Namespace(store, scope, item.profile, namespace or item.namespace)


def receive(reader: Reader, item: Item, where: Namespace, desk: ReceiveSettings, deadline: Deadline) -> Received:
    """Publish what is new of one bundle.

    `ExportDamaged`, `ManifestUnreadable`, `ProfileUnknown`, `PublishBlocked`, the errors of unpacking and publishing.
    """
    found = _manifest(reader, item)
    producer = found.producer
    known = set(desk.bench.store.known_entries(where, producer.user, producer.uid, deadline))
    new = sorted(found.entries.keys() - known)
    if not new:
        return Received(None, 0, len(found.entries), {})
    try:
        wanted = [BundleSelection(where, found, new)]
        with unpacked(desk.bench, wanted, deadline, partial(_copy, reader, item)) as stage:
            rejected = _rejected(desk, stage, found, new, deadline)
            valid = [entry for entry in new if entry not in rejected]
            bundle = None
            if valid:
                bundle = publish_stage(desk.bench, stage, where, _draft(found, valid), deadline).bundle
    except bundles.BundleDamaged as error:
        raise ExportDamaged(path=item.path, problem=error.fields["problem"]) from error
    return Received(bundle, len(valid) if bundle else 0, len(found.entries) - len(new), rejected)


def _manifest(reader: Reader, item: Item) -> Manifest:
    found = manifest.decode(item.bundle, reader.text(item.path + MANIFEST, manifest.LARGEST))
    if (found.scope, found.profile, found.namespace) != item[:3]:
        raise ExportDamaged(path=item.path + MANIFEST, problem="it is of another namespace")
    return found


def _copy(reader: Reader, item: Item, wanted: BundleSelection, out: int) -> None:
    reader.copy(item, wanted.found, out)


def _rejected(
    desk: ReceiveSettings, stage: str, found: Manifest, entries: list[str], deadline: Deadline
) -> dict[str, str]:
    """Return which entries their validator does not take; they have left the stage."""
    files = {entry: sorted(found.entries[entry]) for entry in entries}
    with opened_dir(os.path.join(stage, "entries")) as fd:
        validator = Validator(desk.bench.validator)
        verdicts = validator.judge(found.profile, fd, files, defined=desk.profiles, deadline=deadline)
        rejected = {entry: why for entry, why in verdicts.items() if why is not None}
        for entry in rejected:
            Stage(fd).discard(files[entry])
    return rejected


def _draft(found: Manifest, entries: list[str]) -> Draft:
    origins = {entry: origin(found, entry) for entry in entries}
    return Draft(found.producer, found.facts, {entry: found.entries[entry] for entry in entries}, origins)


def _is_user(name: str, uid: str) -> bool:
    with suppress(KeyError):
        return str(pwd.getpwnam(name).pw_uid) == uid
    return False
