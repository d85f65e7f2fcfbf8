"""Importer `enroot`: NVIDIA's enroot 3.4 to 4.1, through its command line (run and read: 3.4.1 and 4.1.2).

enroot evaluates text from its user's files. So it gets directories of its own in the scratch, an explicit environment,
and a reference rendered from fields. Its helpers need two file capabilities (package enroot+caps), which its programs
may gain. It shares nothing else with a job's user.

enroot 3 cannot resolve a tag to a digest: skopeo does that, or `importers.registry` if skopeo is not installed.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import NamedTuple

from warmstart.errors import WarmstartError
from warmstart.host import process
from warmstart.host.deadline import Deadline, after
from warmstart.host.files import opened_dir, remove_tree, unlink_if_there, write_all
from warmstart.host.identity import Identity
from warmstart.images.credentials import Login, credentials_file, for_enroot
from warmstart.images.importers import oci
from warmstart.images.importers.base import (
    PAUSES_S,
    ImageForbidden,
    ImageNotFound,
    ImportFailed,
    Progress,
    RegistryUnreachable,
    Report,
    every_second,
    run,
    unreported,
    with_retries,
)
from warmstart.images.importers.egress import Reach, host_of
from warmstart.images.layers import LayerPlace
from warmstart.images.reference import Reference, is_digest
from warmstart.images.scratch import Scratch
from warmstart.policy.compiled import Images

PROGRAM = "/usr/bin/enroot"
PROGRAMS = (PROGRAM,)
DIGESTS_SINCE = 4  # first major version with `enroot digest` and NAME@DIGEST in references
CAPABILITIES = ("sys_admin", "mknod")  # of enroot-mksquashovlfs and enroot-aufs2ovlfs (`make setcap`)
RESULT = "image.sqsh"
SQUASH_OPTIONS = "-no-xattrs -exit-on-error -comp zstd -Xcompression-level 3"
SILENCE_S = 30  # limit on a transfer without a byte; enroot itself sets none
CREDENTIALS, TOKENS, TEMP = ".credentials", ".tokens.", "enroot."  # what enroot calls its files
QUICK_S = 30.0  # limit on every command but `import`

_STATUS = re.compile(r"returned error(?: code)?: ([0-9]{3})")
_CURL = re.compile(r"curl: \(([0-9]{1,3})\)")
_WORDS = ("[ERROR]", "curl: (", "mksquashfs", "enroot-", "failed to", "Checksum mismatch")
# The last line if a registry with basic authentication refuses: enroot's awk drops curl's own message.
_REFUSED = ("Authenticating with user:", "Using credentials from file:")
_LATER = frozenset({408, 429, *range(500, 600)})
# Exit codes of curl(1): proxy, host, connect, partial file, timeout, TLS, empty or broken reply, certificate, HTTP/2.
_OUTAGES = frozenset({5, 6, 7, 16, 18, 28, 35, 52, 55, 56, 60, 92})


def make(identity: Identity, rules: Images, login: Login | None) -> Enroot:
    """Return the importer, as the policy wants it."""
    return Enroot(identity, rules.insecure, login=login, reach=Reach(rules.hosts, rules.proxy))


class Enroot(NamedTuple):
    """The importer with its account; `insecure` are registries that are reached over plain HTTP."""

    identity: Identity
    insecure: tuple[str, ...] = ()
    program: str = PROGRAM
    login: Login | None = None  # at the image's registry, if the policy has one for it
    reach: Reach = Reach()
    name: str = "enroot"

    def resolve(self, reference: Reference, scratch: Scratch, deadline: Deadline) -> str:
        """Return the digest from `enroot digest` (4.0 on), else from skopeo, else from the registry's own endpoint.

        enroot returns the digest of the manifest for this node's CPU, the others that of the list of manifests.
        """
        if self._version(reference, scratch, deadline) < DIGESTS_SINCE:
            return self._resolve_without(reference, scratch, deadline)
        completed = self._ask_registry(reference, ["digest", _uri(reference)], scratch, deadline.within(QUICK_S))
        lines = completed.stdout.decode("ascii", "replace").split()
        if len(lines) != 1 or not is_digest(lines[0]):
            raise ImportFailed(image=reference.canonical(), program="enroot", problem="printed no digest")
        return lines[0]

    def import_image(
        self,
        reference: Reference,
        digest: str,
        scratch: Scratch,
        deadline: Deadline,
        *,
        kept: LayerPlace | None = None,  # noqa: ARG002 - enroot's layers cannot be verified
        report: Report = unreported,
    ) -> str:
        """Fetch, unpack and pack the image with that digest in one `enroot import`; return the squashfs' file name.

        If `digest` is "", import what the tag means now: in a user's own import skopeo does not have the user's
        credentials to resolve it. No layers are kept: enroot stores them recompressed under the digests that they had
        before, so nothing could tell a changed one.
        """
        old = self._version(reference, scratch, deadline) < DIGESTS_SINCE
        exact = reference._replace(tag="", digest=digest) if digest else reference
        uri = _uri(exact, ":" if old else "@")
        look = every_second(lambda: report(Progress("fetching and packing", scratch.used())))
        self._ask_registry(reference, ["import", "--output", f"{scratch.path}/{RESULT}", uri], scratch, deadline, look)
        return RESULT

    def _resolve_without(self, reference: Reference, scratch: Scratch, deadline: Deadline) -> str:
        if os.access(oci.SKOPEO, os.X_OK):
            return oci.Oci(self.identity, self.insecure, self.login, self.reach).resolve(reference, scratch, deadline)
        from warmstart.images.importers.client import ImportUserClient

        plain = reference.registry in self.insecure

        def ask() -> str:
            client = ImportUserClient(self.identity)
            return client.ask_endpoint(reference, plain=plain, reach=self.reach, deadline=deadline.within(QUICK_S))

        return with_retries(ask, deadline, PAUSES_S)

    def _version(self, reference: Reference, scratch: Scratch, deadline: Deadline) -> int:
        completed = self._run(reference, ["version"], scratch, deadline.within(QUICK_S), {})
        major = completed.stdout.decode("ascii", "replace").partition(".")[0]
        if completed.status != 0 or not major.isdecimal():
            raise ImportFailed(
                image=reference.canonical(), program="enroot", problem=f"version: {_first_error(completed)}"
            )
        return int(major)

    def _ask_registry(
        self,
        reference: Reference,
        arguments: list[str],
        scratch: Scratch,
        deadline: Deadline,
        look: Callable[[], None] | None = None,
    ) -> process.CompletedProgram:
        """Run a command that needs the registry; retry if that does not answer."""
        insecure = {"ENROOT_ALLOW_HTTP": "y"} if reference.registry in self.insecure else {}

        def attempt(look: Callable[[], None] | None = look) -> process.CompletedProgram:
            unlink_if_there(RESULT, scratch.fd)  # enroot refuses to overwrite what an earlier attempt left
            try:
                completed = self._run(reference, arguments, scratch, deadline, insecure, look)
            except process.ProgramTooSlow as error:
                if arguments[0] == "import":
                    raise
                raise RegistryUnreachable(image=reference.canonical(), problem="no answer in time") from error
            if completed.status != 0:
                raise _failure(reference, completed, scratch)
            return completed

        with scratch.errors():
            _bound_transfers(scratch)
            if self.login is None:
                return with_retries(attempt, deadline, PAUSES_S)
            with (
                _credentials_directory(scratch, self.identity) as config,
                credentials_file(config, self.identity, CREDENTIALS, for_enroot(self.login)),
            ):
                return with_retries(lambda: attempt(_forgetting(scratch, config, look)), deadline, PAUSES_S)

    def _run(  # noqa: PLR0917 - what, where, until when
        self,
        reference: Reference,
        arguments: list[str],
        scratch: Scratch,
        deadline: Deadline,
        more: Mapping[str, str],
        look: Callable[[], None] | None = None,
    ) -> process.CompletedProgram:
        return run(
            [self.program, *arguments],
            reference=reference,
            scratch=scratch,
            deadline=deadline,
            identity=self.identity,
            env={**_settings(scratch.path, os.path.dirname(self.program)), **more},
            reach=self.reach,
            capabilities=CAPABILITIES,
            look=look,
        )


@contextmanager
def _credentials_directory(scratch: Scratch, identity: Identity) -> Iterator[Scratch]:
    """Create the directory in which enroot looks for credentials."""
    with suppress(FileExistsError):
        os.mkdir("config", 0o700, dir_fd=scratch.fd)
    with opened_dir("config", scratch.fd) as fd:
        os.fchown(fd, identity.uid, identity.gid)
        yield scratch._replace(path=f"{scratch.path}/config", fd=fd)


def _forgetting(scratch: Scratch, config: Scratch, look: Callable[[], None] | None) -> Callable[[], None]:
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
        if look is not None:
            look()

    return watch


def _is_unpacking(directory: int) -> bool:
    for name in os.listdir(directory):
        if name.startswith(TEMP):
            with suppress(OSError), opened_dir(name, directory) as temp:
                os.stat("1", dir_fd=temp, follow_symlinks=False)
                return True
    return False


def _uri(reference: Reference, before_digest: str = "@") -> str:
    """Return the URI in the form that 3.4 to 4.1 all accept; 3.x accepts a digest only in place of a tag."""
    version = f"{before_digest}{reference.digest}" if reference.digest else f":{reference.tag}"
    return f"docker://{host_of(reference)}#{reference.repository}{version}"


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
    status = int(found.group(1)) if (found := _STATUS.search(problem)) else 0
    curl = int(found.group(1)) if (found := _CURL.search(problem)) else 0
    if status == 404:
        return ImageNotFound(image=image)
    if status in (401, 403) or any(words in completed.complaint() for words in _REFUSED):
        return ImageForbidden(image=image, problem=_refusal(problem))
    if status in _LATER or curl in _OUTAGES:
        return RegistryUnreachable(image=image, problem=problem)
    return ImportFailed(image=image, program="enroot", problem=problem)


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
