"""Importer `enroot`: NVIDIA's enroot 3.4 to 4.1, through its command line (run and read: 3.4.1 and 4.1.2).

enroot evaluates text from its user's files. So it gets directories of its own in the scratch, an explicit environment,
and a reference rendered from fields. Its helpers need two file capabilities (package enroot+caps), which its programs
may gain. It shares nothing else with a job's user.

skopeo resolves tags: enroot 3 cannot, and enroot 4 says a digest that depends on the node's CPU.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import NamedTuple

from warmstart.errors import WarmstartError
from warmstart.host import process
from warmstart.host.deadline import Deadline, after
from warmstart.host.files import opened_dir, unlink_if_there, write_all
from warmstart.host.identity import Identity
from warmstart.host.remove import remove_tree
from warmstart.images.credentials import Login, credentials_file, for_enroot
from warmstart.images.importers import oci
from warmstart.images.importers.base import (
    BAD_CERTIFICATE,
    NOT_ENCRYPTED,
    ImageForbidden,
    ImageNotFound,
    ImportFailed,
    RegistryUnreachable,
    Report,
    every_second,
    host_of,
    run,
    through,
    unreported,
    with_retries,
)
from warmstart.images.reference import Reference
from warmstart.images.scratch import Scratch
from warmstart.policy.keys import Images

PROGRAM = "/usr/bin/enroot"
PROGRAMS = (PROGRAM, oci.SKOPEO)
CAPABILITIES = ("sys_admin", "mknod")  # of enroot-mksquashovlfs and enroot-aufs2ovlfs (`make setcap`)
RESULT = "image.sqsh"
SQUASH_OPTIONS = "-no-xattrs -exit-on-error -comp zstd -Xcompression-level 3"
SILENCE_S = 30  # limit on a transfer without a byte; enroot itself sets none
CREDENTIALS, TOKENS, TEMP = ".credentials", ".tokens.", "enroot."  # what enroot calls its files
QUICK_S = 30.0  # limit on removing what enroot keeps of a login

_STATUS = re.compile(r"returned error(?: code)?: ([0-9]{3})")
_CURL = re.compile(r"curl: \(([0-9]{1,3})\)")
_WORDS = ("[ERROR]", "curl: (", "mksquashfs", "enroot-", "failed to", "Checksum mismatch")
# The last line if a registry with basic authentication refuses: enroot's awk drops curl's own message.
_REFUSED = ("Authenticating with user:", "Using credentials from file:")
_LATER = frozenset({408, 429, *range(500, 600)})
# Exit codes of curl(1): proxy, host, connect, partial file, timeout, TLS, empty or broken reply, HTTP/2.
_OUTAGES = frozenset({5, 6, 7, 16, 18, 28, 35, 52, 55, 56, 92})
_CERTIFICATES = frozenset({51, 60})
_TLS, _NO_TLS = 35, "wrong version number"  # OpenSSL of an answer in plain HTTP


def make(identity: Identity, rules: Images, mount_point: str, login: Login | None) -> Enroot:  # noqa: ARG001
    """Return the importer, as the policy wants it; enroot makes mount points when it starts a container."""
    return Enroot(identity, rules.insecure, login=login, proxy=rules.proxy)


class Enroot(NamedTuple):
    """The importer with its account; `insecure` are registries that are reached over plain HTTP."""

    identity: Identity
    insecure: tuple[str, ...] = ()
    program: str = PROGRAM
    login: Login | None = None  # at the image's registry, if the policy has one for it
    proxy: str | None = None  # HOST:PORT
    name: str = "enroot"

    def resolve(self, reference: Reference, scratch: Scratch, deadline: Deadline) -> str:
        """Return the digest from skopeo, as the other importer does."""
        return oci.Oci(self.identity, self.insecure, self.login, self.proxy).resolve(reference, scratch, deadline)

    def import_image(
        self,
        reference: Reference,
        digest: str,
        scratch: Scratch,
        deadline: Deadline,
        report: Report = unreported,
    ) -> str:
        """Fetch, unpack and pack the image with that digest in one `enroot import`; return the squashfs' file name.

        If `digest` is "", import what the tag means now: in a user's own import skopeo does not have the user's
        credentials to resolve it.
        """
        exact = reference._replace(tag="", digest=digest) if digest else reference
        insecure = {"ENROOT_ALLOW_HTTP": "y"} if reference.registry in self.insecure else {}
        fetched = every_second(lambda: report("fetching and packing", scratch.used()))

        def attempt(look: Callable[[], None] = fetched) -> str:
            unlink_if_there(RESULT, scratch.fd)  # enroot refuses to overwrite what an earlier attempt left
            completed = run(
                [self.program, "import", "--output", f"{scratch.path}/{RESULT}", _uri(exact)],
                reference=reference,
                scratch=scratch,
                deadline=deadline,
                identity=self.identity,
                env={**_settings(scratch.path, os.path.dirname(self.program)), **insecure, **through(self.proxy)},
                network=True,
                capabilities=CAPABILITIES,
                look=look,
            )
            if completed.status != 0:
                raise _failure(reference, completed, scratch)
            return RESULT

        with scratch.errors():
            _bound_transfers(scratch)
            if self.login is None:
                return with_retries(attempt, deadline)
            with (
                _credentials_directory(scratch, self.identity) as config,
                credentials_file(config, self.identity, CREDENTIALS, for_enroot(self.login)),
            ):
                return with_retries(lambda: attempt(_forgetting(scratch, config, fetched)), deadline)


@contextmanager
def _credentials_directory(scratch: Scratch, identity: Identity) -> Iterator[Scratch]:
    """Create the directory in which enroot looks for credentials."""
    with suppress(FileExistsError):
        os.mkdir("config", 0o700, dir_fd=scratch.fd)
    with opened_dir("config", scratch.fd) as fd:
        os.fchown(fd, identity.uid, identity.gid)
        yield scratch._replace(path=f"{scratch.path}/config", fd=fd)


def _forgetting(scratch: Scratch, config: Scratch, look: Callable[[], None]) -> Callable[[], None]:
    """Return `look`, and remove the login once all layers are fetched: what unpacks them parses hostile bytes.

    enroot (docker.sh) asks for the login before it fetches the manifest, keeps a token or the login itself in its
    cache, and unpacks layers into directories called 1, 2, ….
    """
    forgotten = False

    def remove() -> None:
        nonlocal forgotten
        forgotten = forgotten or _is_unpacking(scratch.fd)
        if forgotten:
            unlink_if_there(CREDENTIALS, config.fd)
            with suppress(FileNotFoundError), opened_dir("cache", scratch.fd) as cache:
                for name in os.listdir(cache):
                    if name.startswith(TOKENS):
                        remove_tree(cache, name, after(QUICK_S))

    remove_soon = every_second(remove)

    def watch() -> None:
        remove_soon()
        look()

    return watch


def _is_unpacking(directory: int) -> bool:
    for name in os.listdir(directory):
        if name.startswith(TEMP):
            with suppress(OSError), opened_dir(name, directory) as temp:
                os.stat("1", dir_fd=temp, follow_symlinks=False)
                return True
    return False


def _uri(reference: Reference) -> str:
    """Return the URI in the form that 3.4 to 4.1 all accept: a digest takes the tag's place, 3.x knows no other."""
    return f"docker://{host_of(reference)}#{reference.repository}:{reference.digest or reference.tag}"


def _settings(scratch: str, programs: str) -> dict[str, str]:
    """Return enroot's environment. It overrides /etc/enroot/enroot.conf, which may still name a proxy."""
    own = {name: f"{scratch}/{name.lower()}" for name in ("RUNTIME", "CONFIG", "CACHE", "DATA")}
    return {
        "HOME": scratch,
        "TMPDIR": scratch,
        "PATH": f"{programs}:/usr/bin:/bin:/usr/sbin:/sbin",
        "SHELL": "/bin/bash",  # GNU parallel runs bash functions in it
        **{f"ENROOT_{name}_PATH": path for name, path in own.items()},
        "ENROOT_TEMP_PATH": scratch,
        "ENROOT_SQUASH_OPTIONS": SQUASH_OPTIONS,
        "ENROOT_MAX_PROCESSORS": str(len(os.sched_getaffinity(0))),
    }


def _bound_transfers(scratch: Scratch) -> None:
    """Limit how long enroot's curl may go without a byte. A limit on the whole transfer would stop large images."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    unlink_if_there(".curlrc", scratch.fd)
    fd = os.open(".curlrc", flags, 0o644, dir_fd=scratch.fd)
    try:
        write_all(fd, f"speed-limit = 1\nspeed-time = {SILENCE_S}\n".encode())
    finally:
        os.close(fd)


def _failure(reference: Reference, completed: process.CompletedProgram, scratch: Scratch) -> WarmstartError:
    """Return the error for what enroot and curl printed: only HTTP statuses and curl's exit codes count."""
    image, problem = reference.canonical(), _first_error(completed)
    if oci.found_no_space(completed):
        return scratch.full(image, problem)
    status = int(match.group(1)) if (match := _STATUS.search(problem)) else 0
    curl = int(match.group(1)) if (match := _CURL.search(problem)) else 0
    if status == 404:
        return ImageNotFound(image=image)
    if status in (401, 403) or any(words in completed.complaint() for words in _REFUSED):
        return ImageForbidden(image=image, problem=_refusal(problem))
    if status in _LATER or curl in _OUTAGES | _CERTIFICATES:
        return RegistryUnreachable(image=image, problem=_outage(curl, problem))
    return ImportFailed(image=image, program="enroot", problem=problem)


def _outage(curl: int, problem: str) -> str:
    if curl in _CERTIFICATES:
        return BAD_CERTIFICATE.format(problem=problem)
    return NOT_ENCRYPTED.format(problem=problem) if curl == _TLS and _NO_TLS in problem else problem


def _refusal(problem: str) -> str:
    """Return why access was refused; of a refused login enroot says only whose it was."""
    if not problem.startswith("[INFO]"):
        return problem
    return "it wants a login" if "<anonymous>" in problem else "it does not accept this login"


def _first_error(completed: process.CompletedProgram) -> str:
    """Return the first line of stderr that reports an error; later ones are consequences."""
    lines = completed.stderr.decode("utf-8", "replace").splitlines()
    for line in lines:
        if not line.startswith("[INFO]") and any(word in line for word in _WORDS):
            return "".join(c if c.isprintable() else "?" for c in line.removeprefix("[ERROR] "))[:500]
    return completed.complaint() if lines else f"status {completed.status}"
