"""The interface of importers, their errors, and how they run their programs.

An importer gets parsed fields, never a user's text, and a scratch directory of its own account. It leaves one squashfs
there and is not trusted: the producer claims and verifies the result.

Programs that root starts run as the import account, in namespaces of their own; those that ask no registry have no
network. In a user's own import they are plain processes of that user.
"""

from __future__ import annotations

import os
import random
import resource
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Protocol, TypeVar

from warmstart.errors import StoreError, UserError
from warmstart.host import namespaces, process
from warmstart.host.deadline import Deadline
from warmstart.host.identity import Identity, ProgramNotStarted
from warmstart.images.reference import DOCKER_HUB, Reference
from warmstart.images.scratch import PREFIX, Exceeded, ImageTooLarge, Scratch, Watch

PRLIMIT = "/usr/bin/prlimit"
LARGEST_FILE = 256 << 30  # bytes; of any single file that an import writes
PAUSES_S = (0.5, 2.0)  # before the second and third attempt; jitter makes each up to half longer
CPU_PRECISION_S = 0.5  # of the kernel's figures
REPORT_S = 1.0  # between two reports of progress
# Of a registry that counts as unreachable:
BAD_CERTIFICATE = "its certificate is not accepted: {problem}"
NOT_ENCRYPTED = "it speaks plain HTTP, and imports want TLS: {problem}"
_T = TypeVar("_T")


class ImageNotFound(UserError):
    """The registry does not have the image, or hides it from clients without access."""

    code = "image-not-found"
    template = "image {image} does not exist, or its registry does not show it to this cluster"
    hint = "check the image's name and tag; a private image needs credentials"


class ImageForbidden(UserError):
    """The registry demands credentials, or refuses those that it got."""

    code = "image-forbidden"
    template = "image {image}: its registry refuses access ({problem})"
    hint = "use a public image, or provide credentials, the site's or your own (docs/guides/private-images.md)"


class ImageMalformed(UserError):
    """The image's layers or documents have a form that no program takes, or contradict each other."""

    code = "image-malformed"
    template = "image {image} is malformed: {problem}"
    hint = "build the image again and push it; if docker runs it as it is, tell the administrators"


class RegistryUnreachable(StoreError):
    """The registry does not answer, answers too late or without TLS that this node trusts, or limits the requests."""

    code = "registry-unreachable"
    template = "image {image}: its registry does not serve it now ({problem})"
    hint = (
        "check that the registry is up and reachable from this node, and that the node trusts its certificate "
        "(/etc/containers/certs.d); one without TLS stands as http://HOST in images.registries; rate limits pass"
    )


class RegistryAnswerUnusable(StoreError):
    """The registry answers with something else than an image, or with a part of one only."""

    code = "registry-answer-unusable"
    template = "image {image}: its registry answered with {problem}"
    hint = "a maintenance page, a proxy or a damaged registry answers so: ask those who run the registry"


class ImageNotForMachine(UserError):
    """The registry has the image, but not for this node's CPU."""

    code = "image-not-for-machine"
    template = "image {image} exists, but not for this node's CPU ({machine})"
    hint = "use an image that is built for this CPU, or nodes of another kind"


class ImportFailed(StoreError):
    """A program of the importer failed for any other reason."""

    code = "image-import-failed"
    template = "image {image}: {program} failed: {problem}"
    hint = "import the image by hand to see the cause (docs/reference/images.md, Import by hand)"


# Is told what an import does now (`fetching`, `unpacking`), and how many bytes of that are done.
Report = Callable[[str, int], None]


def unreported(_phase: str, _done: int) -> None:
    """Tell nobody about an import's progress."""


class Importer(Protocol):
    """Turns an image in a registry into a squashfs file."""

    @property
    def name(self) -> str:
        """The importer's name in the policy."""

    @property
    def identity(self) -> Identity:
        """The account that its programs run as."""

    def resolve(self, reference: Reference, scratch: Scratch, deadline: Deadline) -> str:
        """Return the digest (`sha256:HEX`) that the reference has in its registry now; of one by digest, no other.

        Raises the errors of this module, and `ProgramMissing`.
        """

    def import_image(
        self,
        reference: Reference,
        digest: str,
        scratch: Scratch,
        deadline: Deadline,
        report: Report = unreported,
    ) -> str:
        """Make a squashfs of the image with that digest; return its file name in the scratch directory.

        `report` is called in this process at every new phase and about once a second, and should return soon.

        No process of the importer is alive when this returns or raises. Raises the errors of this module,
        `ImageTooLarge`, `ScratchUnusable`, `ProgramMissing` and `ProgramTooSlow`.
        """


def run(
    argv: Sequence[str],
    *,
    reference: Reference,
    scratch: Scratch,
    deadline: Deadline,
    identity: Identity,
    env: Mapping[str, str],
    network: bool = False,
    capabilities: Sequence[str] = (),
    look: Callable[[], None] | None = None,
    cpu_s: int = 0,
) -> process.CompletedProgram:
    """Run a program of an importer in its scratch, without network unless it is to have the node's.

    It sees no other import's scratch. `look` is called at least once a second while the program runs; an exception
    from it kills the program. `cpu_s` is the most CPU time that it may take, 0 for any. Raises `ImageTooLarge`,
    `ImageMalformed` if it took too much CPU time, and `ImportFailed` if it is not installed.
    """
    watch = None if scratch.is_loop_filesystem else Watch(scratch.fd, scratch.caps)
    watches = [each for each in (watch, look) if each is not None]
    limits = [f"--fsize={LARGEST_FILE}", "--core=0", *([f"--cpu={_allowed(cpu_s)}"] if cpu_s else [])]
    limited, before = [PRLIMIT, *limits, "--", *argv], _cpu_of_children()
    common = partial(process.run, limited, deadline=deadline, cwd=scratch.path, watch=_all(watches))
    try:
        if not _is_alone(identity):
            completed = common(env=env)
        else:
            with _mounts(scratch) as mounts:
                completed = process.run_alone(
                    *common.args, **common.keywords, env=env,
                    identity=identity, capabilities=capabilities, mounts=mounts, network=network,
                )  # fmt: skip
        if watch is not None:
            watch.look()  # counts what was written since the last check
    except Exceeded as error:
        raise ImageTooLarge.of(reference.canonical(), scratch.caps) from error
    if completed.status != 0 and cpu_s and _cpu_of_children() - before > _allowed(cpu_s) - CPU_PRECISION_S:
        problem = f"{os.path.basename(argv[0])} takes more time than its size explains"
        raise ImageMalformed(image=reference.canonical(), problem=problem)
    if completed.status != 0 and f"failed to execute {argv[0]}:" in completed.complaint():  # prlimit(1) says that
        problem = "it is not installed on this node (docs/operations/install.md, What a node needs)"
        raise ImportFailed(image=reference.canonical(), program=argv[0], problem=problem)
    return completed


def _allowed(seconds: int) -> int:
    """Return the CPU time that a program may be allowed: the limit of a user's own import may be lower."""
    hard = resource.getrlimit(resource.RLIMIT_CPU)[1]
    return seconds if hard == resource.RLIM_INFINITY else min(seconds, hard)


def _cpu_of_children() -> float:
    """Return the CPU time of all programs that have ended."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def host_of(reference: Reference) -> str:
    """Return HOST or HOST:PORT of the server of an image's registry."""
    return "registry-1.docker.io" if reference.registry == DOCKER_HUB else reference.registry


def through(proxy: str | None) -> dict[str, str]:
    """Return the variables by which programs use the site's proxy, HOST:PORT; none without one.

    They do not use it for the loopback.
    """
    if not proxy:
        return {}
    url = f"http://{proxy}"
    return {"http_proxy": url, "https_proxy": url, "all_proxy": url, "no_proxy": "localhost,127.0.0.0/8,::1"}


def every_second(action: Callable[[], None]) -> Callable[[], None]:
    """Return a function that calls `action` at its first call, and then no more than once a second."""
    due = 0.0

    def look() -> None:
        nonlocal due
        if time.monotonic() >= due:
            action()
            due = time.monotonic() + REPORT_S

    return look


def _all(watches: Sequence[Callable[[], None]]) -> Callable[[], None] | None:
    def watch() -> None:
        for each in watches:
            each()

    return watch if watches else None


def _is_alone(identity: Identity) -> bool:
    return os.geteuid() != identity.uid


@contextmanager
def _mounts(scratch: Scratch) -> Iterator[int]:
    """Yield a mount namespace without other imports' scratches."""
    others = os.path.join(os.path.dirname(os.path.dirname(scratch.path)), PREFIX)
    try:
        fd = namespaces.new_namespace(others, scratch.path)
    except OSError as error:
        raise ProgramNotStarted(program="an import's program", problem=error.strerror) from error
    try:
        yield fd
    finally:
        os.close(fd)


def with_retries(attempt: Callable[[], _T], deadline: Deadline) -> _T:
    """Return the result of `attempt`; on `RegistryUnreachable` retry after each of `PAUSES_S` (plus jitter).

    Raises the last error if the attempts or the time to the deadline are used up.
    """
    for pause in PAUSES_S:
        try:
            return attempt()
        except RegistryUnreachable:
            # S311: jitter between nodes that were refused at the same time; no secret
            spread = pause * (1 + random.random() / 2)  # noqa: S311
            if deadline.left() <= spread:
                raise
            time.sleep(spread)
    return attempt()
