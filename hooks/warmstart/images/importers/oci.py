"""Importer `oci`: skopeo fetches, mksquashfs packs what `flatten` makes of the layers.

Where that cannot be done, umoci unpacks the layers first, and `unpacked` finishes the tree. Debian has all three.

Each runs as the import account, in PID, mount and IPC namespaces of its own, without privileges. Only skopeo has
network access. Measured with skopeo 1.9.3, umoci 0.4.7 and squashfs-tools 4.5.1: docs/reference/images.md.
"""

from __future__ import annotations

import hashlib
import os
import re
import time
from collections.abc import Callable
from contextlib import suppress
from typing import NamedTuple

from warmstart.errors import WarmstartError
from warmstart.host import process
from warmstart.host.deadline import Deadline
from warmstart.host.files import opened_dir
from warmstart.host.identity import Identity
from warmstart.images.credentials import Login, credentials_file, for_skopeo
from warmstart.images.importers import client, flatten, unpacked
from warmstart.images.importers.base import (
    BAD_CERTIFICATE,
    NOT_ENCRYPTED,
    ImageForbidden,
    ImageMalformed,
    ImageNotForMachine,
    ImageNotFound,
    ImportFailed,
    RegistryAnswerUnusable,
    RegistryUnreachable,
    Report,
    every_second,
    run,
    through,
    unreported,
    with_retries,
)
from warmstart.images.importers.manifest import ImageManifest
from warmstart.images.reference import Reference
from warmstart.images.scratch import ImageTooLarge, Scratch, Watch
from warmstart.policy.keys import Images

SKOPEO = "/usr/bin/skopeo"
UMOCI = "/usr/bin/umoci"
MKSQUASHFS = "/usr/bin/mksquashfs"

PROGRAMS = (SKOPEO, UMOCI)  # besides those that every node has
LAYOUT, TAG = "layout", "import"
ROOTFS = "rootfs"
RESULT = "image.sqsh"
AUTHFILE = "auth.json"
LEFT_TO_UMOCI = {flatten.UNSUPPORTED: LAYOUT, flatten.UNSUPPORTED_ZSTD: flatten.UNCOMPRESSED}  # status → layout
RESOLVE_S = 30.0  # skopeo itself waits and retries on status 429 (too many requests)
ANOTHER = "another manifest than the one that it was asked for"
PACE_S, LEAST_FETCHED = 300.0, 8 << 20  # seconds in which a registry sends at least so many bytes
SLOWEST_DISK = 32 << 20  # bytes a second; skopeo waits for it once all has arrived

_SECONDS = re.compile(rb"[1-9][0-9]{0,8}\n")
# Messages of skopeo (containers/image and Go's net). `_failure` decides in which order they count.
NO_SPACE = ("no space left on device", "disk quota exceeded", "file too large", "file size limit exceeded")
# For a repository that it does not have, Docker Hub prints "denied" and "unauthorized" in the same message.
_HIDDEN = ("requested access to the resource is denied",)
_FORBIDDEN = (
    "unauthorized", "authentication required", "denied:", "statuscode: 401", "statuscode: 403",
    "status code from registry 403",
)  # fmt: skip
_NOT_FOUND = ("manifest unknown", "name unknown", "not found", "statuscode: 404")
_ALTERED = ("manifest does not match provided manifest digest",)  # an error page, too
_NO_MACHINE = ("no image found in manifest list", "no image found in image index")  # none for this node's CPU
# Asked for before the image: a proxy that answers so says nothing of the image.
_PING = ("pinging container registry",)
_BEFORE = (*_PING, "requesting bear")  # a token
_CERTIFICATE = ("x509:", "tls: failed to verify")
_NOT_ENCRYPTED = ("server gave http response to https client",)
_UNREACHABLE = (
    "connection refused", "connection reset", "no such host", "no route to host", "network is unreachable",
    "timeout", "timed out", "deadline exceeded", "eof", "broken pipe", "temporary failure", "tls:",
    *_CERTIFICATE, *_NOT_ENCRYPTED,
    "server closed idle connection",
    "too many requests", "toomanyrequests", "rate limit", "server error", "bad gateway", "service unavailable",
    "statuscode: 429", "statuscode: 5", "http status: 5",
)  # fmt: skip


def make(identity: Identity, rules: Images, mount_point: str, login: Login | None) -> Oci:
    """Return the importer, as the policy wants it."""
    return Oci(identity, rules.insecure, login, rules.proxy, mount_point)


class _Unpacking(NamedTuple):
    """How an image is unpacked that `flatten` leaves to umoci."""

    layout: str
    cpu_s: int  # the most CPU time of each program


class Oci(NamedTuple):
    """The importer with its account; `insecure` are registries without TLS, or whose certificate is not verified."""

    identity: Identity
    insecure: tuple[str, ...] = ()
    login: Login | None = None  # at the image's registry, if the policy has one for it
    proxy: str | None = None  # HOST:PORT
    mount_point: str = ""  # an empty directory that each image gets
    name: str = "oci"

    def resolve(self, reference: Reference, scratch: Scratch, deadline: Deadline) -> str:
        """Return the digest of the reference's manifest, or of its list of manifests, from the registry.

        Only that is asked for: what it names, such as the configuration, may be damaged or missing. Whoever names a
        digest gets that: skopeo compares it only when it copies.
        """
        digest, text = self._show(reference, scratch, deadline)
        if reference.digest not in {"", digest}:
            raise RegistryAnswerUnusable(image=reference.canonical(), problem=ANOTHER)
        if not self._read(text, deadline).is_one:
            raise RegistryAnswerUnusable(image=reference.canonical(), problem="something that is no image's manifest")
        return digest

    def import_image(
        self,
        reference: Reference,
        digest: str,
        scratch: Scratch,
        deadline: Deadline,
        report: Report = unreported,
    ) -> str:
        """Fetch, unpack and pack the image with that digest; return the file name of the squashfs."""
        exact, total = self._manifest(reference, digest, scratch, deadline)
        if total > scratch.caps.size:
            raise ImageTooLarge.of(reference.canonical(), scratch.caps)

        def looking(phase: str) -> Callable[[], None]:
            return every_second(lambda: report(phase, scratch.used()))

        fetching = _fetching(exact, scratch, total, report)
        self._skopeo(exact, self._copy(exact, scratch), scratch, deadline, deadline.left(), fetching)
        left = self._flatten(exact, scratch, deadline, looking("packing"))
        if left:
            unpack = [UMOCI, "raw", "unpack", "--rootless", "--image", f"{left.layout}:{TAG}", ROOTFS]
            self._do(exact, unpack, scratch, deadline, looking("unpacking"), left.cpu_s)
            # mksquashfs replaces files that their owner may not read (RHEL's shadow, 0000) by empty ones.
            finish = unpacked.command(left.layout, TAG, ROOTFS, self.mount_point)
            self._do(exact, finish, scratch, deadline, looking("unpacking"), left.cpu_s)
            self._do(exact, _pack(), scratch, deadline, looking("packing"), left.cpu_s)
        return RESULT

    def _flatten(
        self, reference: Reference, scratch: Scratch, deadline: Deadline, look: Callable[[], None]
    ) -> _Unpacking | None:
        """Make the result straight from the layers, and return None.

        If they must be unpacked, leave nothing, and return how. No layers get there that were not read through: umoci
        has no bounds.
        """
        argv = flatten.command(LAYOUT, TAG, RESULT, scratch.caps, self.mount_point)
        completed = self._run(reference, argv, scratch, deadline, look=look)
        if completed.status in LEFT_TO_UMOCI:
            if not _SECONDS.fullmatch(completed.stdout):
                raise _failure(reference, "flatten", completed, scratch)
            return _Unpacking(LEFT_TO_UMOCI[completed.status], int(completed.stdout))
        if completed.status == flatten.TOO_LARGE:
            raise ImageTooLarge.of(reference.canonical(), scratch.caps)
        if completed.status == flatten.INVALID:
            raise ImageMalformed(image=reference.canonical(), problem=completed.complaint())
        if completed.status == flatten.OTHER_MACHINE:
            raise ImageNotForMachine(image=reference.canonical(), machine=os.uname().machine)
        if completed.status != 0:
            raise _failure(reference, "flatten", completed, scratch)
        return None

    def _copy(self, exact: Reference, scratch: Scratch) -> list[str]:
        return [
            "copy", self._credentials("--src-no-creds", scratch), f"--src-tls-verify={self._verified(exact)}",
            f"docker://{exact.canonical()}", f"oci:{LAYOUT}:{TAG}",
        ]  # fmt: skip

    def _manifest(
        self, reference: Reference, digest: str, scratch: Scratch, deadline: Deadline
    ) -> tuple[Reference, int]:
        """Return the reference to the manifest for this machine, and the bytes of its layers; 0 if nobody can tell.

        Raises `ImageMalformed` for one of which no image can be made: it would be fetched in vain.
        """
        exact = reference._replace(tag="", digest=digest)
        for _ in range(2):
            shown, text = self._show(exact, scratch, deadline)
            if len(text) >= process.MOST_OUTPUT:  # cut there
                raise ImageMalformed(image=reference.canonical(), problem="its manifest is too long")
            if shown != exact.digest:
                break
            manifest = self._read(text, deadline)
            if manifest.problem:
                raise ImageMalformed(image=reference.canonical(), problem=manifest.problem)
            if not manifest.child:
                return exact, manifest.size
            exact = exact._replace(digest=manifest.child)
        return reference._replace(tag="", digest=digest), 0

    def _show(self, reference: Reference, scratch: Scratch, deadline: Deadline) -> tuple[str, str]:
        """Return what the registry answers when it is asked for a manifest: its digest, and its text."""
        inspect = [
            "inspect", self._credentials("--no-creds", scratch), f"--tls-verify={self._verified(reference)}",
            "--raw", f"docker://{reference.canonical()}",
        ]  # fmt: skip
        shown = self._skopeo(reference, inspect, scratch, deadline, RESOLVE_S).stdout
        return f"sha256:{hashlib.sha256(shown).hexdigest()}", shown.decode("utf-8", "replace")

    def _read(self, text: str, deadline: Deadline) -> ImageManifest:
        return client.read_manifest(self.identity, text, os.uname().machine, deadline)

    def _do(  # noqa: PLR0917 - what, where, until when
        self,
        reference: Reference,
        argv: list[str],
        scratch: Scratch,
        deadline: Deadline,
        look: Callable[[], None],
        cpu_s: int,
    ) -> None:
        completed = self._run(reference, argv, scratch, deadline, look=look, cpu_s=cpu_s)
        if completed.status != 0:
            raise _failure(reference, argv[0], completed, scratch)

    def _skopeo(  # noqa: PLR0917 - what, where, until when
        self,
        reference: Reference,
        command: list[str],
        scratch: Scratch,
        deadline: Deadline,
        limit_s: float,
        look: Callable[[], None] | None = None,
    ) -> process.CompletedProgram:
        argv = [SKOPEO, "--tmpdir", scratch.path, *command]

        def attempt() -> process.CompletedProgram:
            try:
                completed = self._run(reference, argv, scratch, deadline.within(limit_s), look, network=True)
            except process.ProgramTooSlow as error:
                raise RegistryUnreachable(image=reference.canonical(), problem="no answer in time") from error
            if completed.status != 0:
                raise _failure(reference, SKOPEO, completed, scratch)
            return completed

        if self.login is None:
            return with_retries(attempt, deadline)
        with credentials_file(scratch, self.identity, AUTHFILE, for_skopeo(self.login)):
            return with_retries(attempt, deadline)

    def _run(  # noqa: PLR0917 - what, where, until when
        self,
        reference: Reference,
        argv: list[str],
        scratch: Scratch,
        deadline: Deadline,
        look: Callable[[], None] | None = None,
        cpu_s: int = 0,
        *,
        network: bool = False,
    ) -> process.CompletedProgram:
        return run(
            argv,
            reference=reference,
            scratch=scratch,
            deadline=deadline,
            identity=self.identity,
            env={"HOME": scratch.path, "TMPDIR": scratch.path, "XDG_RUNTIME_DIR": scratch.path, **through(self.proxy)},
            network=network,
            look=look,
            cpu_s=cpu_s,
        )

    def _credentials(self, without: str, scratch: Scratch) -> str:
        return f"--authfile={scratch.path}/{AUTHFILE}" if self.login else without

    def _verified(self, reference: Reference) -> str:
        return "false" if reference.registry in self.insecure else "true"


def _fetching(reference: Reference, scratch: Scratch, total: int, report: Report) -> Callable[[], None]:
    """Return what looks after a download: it reports how far it is, and gives it up if too little comes.

    A registry that sends a byte now and then would hold a slot of this node until the import's deadline.
    """
    due, before = time.monotonic() + PACE_S, 0
    writing = total / SLOWEST_DISK  # seconds that skopeo may need once all has arrived

    def look() -> None:
        nonlocal due, before, writing
        here = _fetched(scratch)
        here = min(here, total or here)  # what nobody has spoken of is no progress
        report("fetching", here)
        before = min(before, here)  # another attempt begins with less
        if time.monotonic() < due:
            return
        came, before, due = here - before, here, time.monotonic() + PACE_S
        if came >= LEAST_FETCHED:
            return
        if here >= total and writing:
            due, writing = due + writing, 0.0
        else:
            problem = f"too little: {came} bytes in {PACE_S:.0f} s"
            raise RegistryUnreachable(image=reference.canonical(), problem=problem)

    return every_second(look)


def _fetched(scratch: Scratch) -> int:
    """Return how many bytes of the image have come, with those of unfinished layers."""
    with suppress(OSError), opened_dir(LAYOUT, scratch.fd) as layout:
        watch = Watch(layout, scratch.caps)
        watch.look()
        return scratch.caps.size - watch.left.size
    return 0  # it has not begun


def _pack() -> list[str]:
    processors = str(len(os.sched_getaffinity(0)))
    return [
        MKSQUASHFS, ROOTFS, RESULT, "-all-root", "-no-xattrs", "-noappend", "-no-progress", "-quiet",
        "-mem", flatten.PACKING_MEMORY,
        "-comp", "zstd", "-Xcompression-level", "3", "-mkfs-time", "0", "-processors", processors,
    ]  # fmt: skip


def _failure(
    reference: Reference, program: str, completed: process.CompletedProgram, scratch: Scratch
) -> WarmstartError:
    """Return the error for a program that failed, by the last line of its stderr."""
    image, problem = reference.canonical(), _cause(completed.complaint(), reference)
    if found_no_space(completed):
        return scratch.full(image, problem)
    if program == SKOPEO and (error := _answer(image, problem)):
        return error
    return ImportFailed(image=image, program=os.path.basename(program), problem=problem or f"status {completed.status}")


def _answer(image: str, problem: str) -> WarmstartError | None:
    """Return the error that a registry's answer stands for, by skopeo's words; None if nobody has seen them yet."""

    def mentions(words: tuple[str, ...]) -> bool:
        return any(word in problem.lower() for word in words)

    if mentions(_ALTERED):
        return RegistryAnswerUnusable(image=image, problem=ANOTHER)
    if mentions(_NO_MACHINE):
        return ImageNotForMachine(image=image, machine=os.uname().machine)
    if not mentions(_BEFORE) and (mentions(_HIDDEN) or (mentions(_NOT_FOUND) and not mentions(_FORBIDDEN))):
        return ImageNotFound(image=image)
    if mentions(_FORBIDDEN) and not mentions(_PING):
        return ImageForbidden(image=image, problem=problem)
    if mentions(_UNREACHABLE) or mentions(_BEFORE):
        kinds = {BAD_CERTIFICATE: _CERTIFICATE, NOT_ENCRYPTED: _NOT_ENCRYPTED}
        why = next((why for why, words in kinds.items() if mentions(words)), "{problem}")
        return RegistryUnreachable(image=image, problem=why.format(problem=problem))
    return None


def found_no_space(completed: process.CompletedProgram) -> bool:
    """Return whether a program found the disk full. Searches all of stderr, since it may not be the last line."""
    stderr = completed.stderr.decode("utf-8", "replace").lower()
    return any(words in stderr for words in NO_SPACE)


def _cause(complaint: str, reference: Reference) -> str:
    r"""Return the end of a log line, which has the cause, without the image's name.

    `time="…" level=fatal msg="Error parsing image name \"docker://HOST/NAME:TAG\": reading manifest TAG in
    HOST/NAME: manifest unknown"`. The user chooses the name, and an image named `timeout` is not a timeout.
    """
    words = (complaint.partition('msg="')[2].removesuffix('"') or complaint).replace('\\"', '"')
    name = f"{reference.registry}/{reference.repository}"
    tail = words.rpartition(f"{name}: ")[2]
    if tail == words and name in words:
        tail = words.rpartition(name)[2].partition(": ")[2] or words
    return tail.strip(" ,")
