"""What an importer is, what can go wrong with one, and how it runs its programs.

An importer gets fields, never a user's text, and a scratch directory of its own account. It leaves one squashfs there
and is believed in nothing: the producer claims and verifies the result.

Programs that root starts run as the import account, in namespaces of their own, with no network but the proxy of
`egress`. A user's own import runs them as plain processes of that user.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Protocol, TypeVar

from warmstart.errors import StoreError, UserError
from warmstart.host import process
from warmstart.host.deadline import Deadline
from warmstart.host.identity import Identity
from warmstart.images.importers import egress
from warmstart.images.importers.egress import Destinations, Reach
from warmstart.images.reference import Reference
from warmstart.images.scratch import Exceeded, ImageTooLarge, Scratch, Watch

PRLIMIT = "/usr/bin/prlimit"
LARGEST_FILE = 256 << 30  # bytes; of any single file that an import writes
PAUSES_S = (0.5, 2.0)  # before the second and the third attempt, each up to half longer
_T = TypeVar("_T")


class ImageNotFound(UserError):
    """The registry says that there is no such image, or hides it from who has no access."""

    code = "image-not-found"
    template = "image {image} does not exist, or its registry does not show it to this cluster"
    hint = "check the name and the tag; private images need credentials"


class ImageForbidden(UserError):
    """The registry demands credentials, or refuses those that the cluster has."""

    code = "image-forbidden"
    template = "image {image}: its registry refuses access ({problem})"
    hint = "private images need credentials, the site's or your own"


class RegistryUnreachable(StoreError):
    """The registry does not answer, answers too late, or asks to come back later."""

    code = "registry-unreachable"
    template = "image {image}: its registry does not serve it now ({problem})"
    hint = "is the registry up, and reachable from this node? rate limits pass by themselves"


class RedirectRefused(StoreError):
    """A registry sent the import where none may go."""

    code = "redirect-refused"
    template = "image {image}: {problem}"
    hint = "if that host is the site's own (a mirror, a token service, storage), name it in images.hosts"


class ImportFailed(StoreError):
    """A program of the importer failed for another reason."""

    code = "image-import-failed"
    template = "image {image}: {program} failed: {problem}"
    hint = "try the same by hand (docs/images.md, Import by hand)"


class Importer(Protocol):
    """A way from a reference to a squashfs file."""

    @property
    def name(self) -> str:
        """What the policy calls it."""

    @property
    def identity(self) -> Identity:
        """The account that its programs run as."""

    def resolve(self, reference: Reference, scratch: Scratch, deadline: Deadline) -> str:
        """Return the digest that the reference has in its registry now (`sha256:HEX`)."""

    def import_image(self, reference: Reference, digest: str, scratch: Scratch, deadline: Deadline) -> str:
        """Make a squashfs of that content; return its file name in the scratch directory.

        No process of the importer is alive when it returns or raises.
        """


def run(
    argv: Sequence[str],
    *,
    reference: Reference,
    scratch: Scratch,
    deadline: Deadline,
    identity: Identity,
    env: Mapping[str, str],
    reach: Reach | None = None,
    capabilities: Sequence[str] = (),
) -> process.CompletedProgram:
    """Run a program of an importer in its scratch; with `reach` it has the registry, and what that names.

    Raises `ImageTooLarge`, and `RedirectRefused` for a program that failed after a refused connection.
    """
    watch = None if scratch.is_loop_filesystem else Watch(scratch.fd, scratch.caps)
    limited = [PRLIMIT, f"--fsize={LARGEST_FILE}", "--core=0", "--", *argv]
    common = partial(_start(identity, capabilities), limited, deadline=deadline, cwd=scratch.path, watch=watch)
    try:
        if reach is None or not _is_alone(identity):
            completed = common(env=env)
        else:
            completed = _with_egress(common, env, identity, reference, reach)
        if watch is not None:
            watch.look()  # what it wrote since the last time
    except Exceeded as error:
        raise ImageTooLarge.of(reference.canonical(), scratch.caps) from error
    return completed


def _is_alone(identity: Identity) -> bool:
    return os.geteuid() != identity.uid


def _start(identity: Identity, capabilities: Sequence[str]) -> Callable[..., process.CompletedProgram]:
    if _is_alone(identity):
        return partial(process.run_alone, identity=identity, capabilities=capabilities)
    return process.run


def _with_egress(
    start: Callable[..., process.CompletedProgram],
    env: Mapping[str, str],
    identity: Identity,
    reference: Reference,
    reach: Reach,
) -> process.CompletedProgram:
    with egress.opened(identity, Destinations.of(reference, reach)) as way:
        completed = start(env={**env, **way.environment}, namespace=way.namespace)
        if completed.status != 0 and (problem := way.refused()):
            raise RedirectRefused(image=reference.canonical(), problem=problem)
        return completed


def patiently(attempt: Callable[[], _T], deadline: Deadline, pauses: Sequence[float]) -> _T:
    """Return what `attempt` returns; try again after `RegistryUnreachable` and each of `pauses`, in seconds."""
    for pause in pauses:
        try:
            return attempt()
        except RegistryUnreachable:
            # S311: spreads nodes that were refused together; no secret
            spread = pause * (1 + random.random() / 2)  # noqa: S311
            if deadline.left() <= spread:
                raise
            time.sleep(spread)
    return attempt()
