"""Importer `enroot`, NVIDIA's, by its command line alone; enroot 3.4 to 4.1 (run and read: 3.4.1 and 4.1.2).

enroot evaluates text from its user's files, so it gets directories of its own below the scratch, an explicit
environment, and a reference rendered from fields. Its helpers need two file capabilities (package enroot+caps), so
its programs may gain those; nothing else is shared with a job's user.

enroot 3 cannot ask a registry for a tag's digest. Where skopeo is missing, too, the registry's manifest endpoint is
asked (OCI distribution specification, pulling manifests; anonymous token authentication as in Docker's registry), as
the import account. Redirects are not followed, and a token service must be where an import may connect.
"""

from __future__ import annotations

import http.client
import json
import os
import re
import socket
import ssl
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import NamedTuple
from urllib.parse import urlencode, urlsplit

from warmstart.errors import WarmstartError
from warmstart.host import process
from warmstart.host.deadline import Deadline
from warmstart.host.files import opened_dir, unlink_if_there, write_all
from warmstart.host.identity import Identity
from warmstart.images.credentials import Login, for_enroot, lent
from warmstart.images.importers import oci
from warmstart.images.importers.base import (
    PAUSES_S,
    ImageForbidden,
    ImageNotFound,
    ImportFailed,
    RedirectRefused,
    RegistryUnreachable,
    patiently,
    run,
)
from warmstart.images.importers.egress import DestinationRefused, Destinations, Reach, host_of, split
from warmstart.images.reference import Reference, is_digest
from warmstart.images.scratch import Scratch

DIGESTS_SINCE = 4  # `enroot digest`, and NAME@DIGEST in references
CAPABILITIES = ("sys_admin", "mknod")  # of enroot-mksquashovlfs and enroot-aufs2ovlfs, `make setcap`
RESULT = "image.sqsh"
SQUASH_OPTIONS = "-no-xattrs -exit-on-error -comp zstd -Xcompression-level 3"
SILENCE_S = 30  # without a byte; enroot itself sets no limit
QUICK_S = 30.0  # for all but an import

_STATUS = re.compile(r"returned error(?: code)?: ([0-9]{3})")
_CURL = re.compile(r"curl: \(([0-9]{1,3})\)")
_WORDS = ("[ERROR]", "curl: (", "mksquashfs", "enroot-", "failed to", "Checksum mismatch")
# Its last words where a registry with basic authentication refuses: what curl says then, enroot's awk swallows.
_REFUSED = ("Authenticating with user:", "Using credentials from file:")
_LATER = frozenset({408, 429, *range(500, 600)})
# curl(1): proxy, host, connect, partial, timeout, TLS, nothing or a broken answer, certificate, HTTP/2.
_OUTAGES = frozenset({5, 6, 7, 16, 18, 28, 35, 52, 55, 56, 60, 92})
MANIFESTS = (
    "application/vnd.docker.distribution.manifest.list.v2+json",
    "application/vnd.oci.image.index.v1+json",
    "application/vnd.docker.distribution.manifest.v2+json",
    "application/vnd.oci.image.manifest.v1+json",
)
LONGEST_ANSWER = 1 << 20
_PARAMETER = re.compile(r'([a-z]+)="([^"]*)"')


class _Peer(NamedTuple):
    """A server to ask: HOST or HOST:PORT, `plain` without TLS, and the destinations it may have."""

    host: str
    plain: bool
    seconds: float
    allowed: Destinations


class _Answer(NamedTuple):
    """A response; header names in lower case."""

    status: int
    headers: dict[str, str]
    body: bytes


class Enroot(NamedTuple):
    """The importer, as one account; `insecure` are registries reached over plain http."""

    identity: Identity
    insecure: tuple[str, ...] = ()
    program: str = "/usr/bin/enroot"
    login: Login | None = None  # at the registry of the image, for one that the policy has it for
    reach: Reach = Reach()
    name: str = "enroot"

    def resolve(self, reference: Reference, scratch: Scratch, deadline: Deadline) -> str:
        """Ask for the digest: enroot from 4.0 on, else skopeo, else the registry's manifest endpoint.

        enroot names the manifest of this node's CPU, the others the list that it stands in.
        """
        if self._version(reference, scratch, deadline) < DIGESTS_SINCE:
            return self._resolve_without(reference, scratch, deadline)
        completed = self._ask_registry(reference, ["digest", _uri(reference)], scratch, deadline.within(QUICK_S))
        lines = completed.stdout.decode("ascii", "replace").split()
        if len(lines) != 1 or not is_digest(lines[0]):
            raise ImportFailed(image=reference.canonical(), program="enroot", problem="printed no digest")
        return lines[0]

    def import_image(self, reference: Reference, digest: str, scratch: Scratch, deadline: Deadline) -> str:
        """Fetch by digest, unpack and pack, all of which is one `enroot import`.

        Without a digest, what the tag means now: for a user's own import, whose credentials skopeo
        does not have.
        """
        old = self._version(reference, scratch, deadline) < DIGESTS_SINCE
        exact = reference._replace(tag="", digest=digest) if digest else reference
        uri = _uri(exact, ":" if old else "@")
        self._ask_registry(reference, ["import", "--output", f"{scratch.path}/{RESULT}", uri], scratch, deadline)
        return RESULT

    def _resolve_without(self, reference: Reference, scratch: Scratch, deadline: Deadline) -> str:
        if os.access(oci.SKOPEO, os.X_OK):
            return oci.Oci(self.identity, self.insecure, self.login, self.reach).resolve(reference, scratch, deadline)
        from warmstart.images.importers.client import ImportUserClient

        plain = reference.registry in self.insecure

        def ask() -> str:
            client = ImportUserClient(self.identity)
            return client.ask_endpoint(reference, plain=plain, reach=self.reach, deadline=deadline.within(QUICK_S))

        return patiently(ask, deadline, PAUSES_S)

    def _version(self, reference: Reference, scratch: Scratch, deadline: Deadline) -> int:
        completed = self._run(reference, ["version"], scratch, deadline.within(QUICK_S), {})
        major = completed.stdout.decode("ascii", "replace").partition(".")[0]
        if completed.status != 0 or not major.isdecimal():
            raise ImportFailed(image=reference.canonical(), program="enroot", problem=f"version: {_words(completed)}")
        return int(major)

    def _ask_registry(
        self, reference: Reference, arguments: list[str], scratch: Scratch, deadline: Deadline
    ) -> process.CompletedProgram:
        """Run a command that needs the registry; try again if that does not answer."""
        insecure = {"ENROOT_ALLOW_HTTP": "y"} if reference.registry in self.insecure else {}

        def attempt() -> process.CompletedProgram:
            unlink_if_there(RESULT, scratch.fd)  # half of it from before, and enroot would refuse to go on
            try:
                completed = self._run(reference, arguments, scratch, deadline, insecure)
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
                return patiently(attempt, deadline, PAUSES_S)
            with (
                _credentials_directory(scratch, self.identity) as config,
                lent(config, self.identity, ".credentials", for_enroot(self.login)),
            ):
                return patiently(attempt, deadline, PAUSES_S)

    def _run(
        self,
        reference: Reference,
        arguments: list[str],
        scratch: Scratch,
        deadline: Deadline,
        more: Mapping[str, str],
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
        )


@contextmanager
def _credentials_directory(scratch: Scratch, identity: Identity) -> Iterator[Scratch]:
    """Make the directory where enroot looks for credentials."""
    with suppress(FileExistsError):
        os.mkdir("config", 0o700, dir_fd=scratch.fd)
    with opened_dir("config", scratch.fd) as fd:
        os.fchown(fd, identity.uid, identity.gid)
        yield scratch._replace(path=f"{scratch.path}/config", fd=fd)


def _uri(reference: Reference, before_digest: str = "@") -> str:
    """Render the one form that 3.4 to 4.1 all take; 3.x takes a digest only where a tag stands."""
    version = f"{before_digest}{reference.digest}" if reference.digest else f":{reference.tag}"
    return f"docker://{host_of(reference)}#{reference.repository}{version}"


def _settings(scratch: str, programs: str) -> dict[str, str]:
    """Return enroot's environment, which wins over /etc/enroot/enroot.conf; that may still name a proxy."""
    own = {name: f"{scratch}/{name.lower()}" for name in ("RUNTIME", "CONFIG", "CACHE", "DATA")}
    return {
        "HOME": scratch,
        "TMPDIR": scratch,
        "PATH": f"{programs}:/usr/bin:/bin:/usr/sbin:/sbin",
        "SHELL": "/bin/bash",  # GNU parallel starts functions of bash in it
        **{f"ENROOT_{name}_PATH": path for name, path in own.items()},
        "ENROOT_TEMP_PATH": scratch,
        "ENROOT_SQUASH_OPTIONS": SQUASH_OPTIONS,
        "ENROOT_MAX_PROCESSORS": str(len(os.sched_getaffinity(0))),
    }


def _bound_transfers(scratch: Scratch) -> None:
    """Limit how long enroot's curl may be without a byte; a limit on the whole time would stop large images."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    unlink_if_there(".curlrc", scratch.fd)
    fd = os.open(".curlrc", flags, 0o644, dir_fd=scratch.fd)
    try:
        write_all(fd, f"speed-limit = 1\nspeed-time = {SILENCE_S}\n".encode())
    finally:
        os.close(fd)


def _failure(reference: Reference, completed: process.CompletedProgram, scratch: Scratch) -> WarmstartError:
    """Return the error for what enroot and curl printed; only the numbers that both give count."""
    image, problem = reference.canonical(), _words(completed)
    if oci.found_no_space(completed):
        return scratch.full(image, problem)
    status = int(found.group(1)) if (found := _STATUS.search(problem)) else 0
    curl = int(found.group(1)) if (found := _CURL.search(problem)) else 0
    if status == 404:
        return ImageNotFound(image=image)
    if status in (401, 403) or any(words in completed.complaint() for words in _REFUSED):
        return ImageForbidden(image=image, problem=problem)
    if status in _LATER or curl in _OUTAGES:
        return RegistryUnreachable(image=image, problem=problem)
    return ImportFailed(image=image, program="enroot", problem=problem)


def _words(completed: process.CompletedProgram) -> str:
    """Return the first line of stderr that says what went wrong; later ones are consequences."""
    lines = completed.stderr.decode("utf-8", "replace").splitlines()
    for line in lines:
        if not line.startswith("[INFO]") and any(word in line for word in _WORDS):
            return "".join(c if c.isprintable() else "?" for c in line)[:500]
    return completed.complaint() if lines else f"status {completed.status}"


def ask(reference: Reference, *, plain: bool, hosts: tuple[str, ...], seconds: float) -> str:
    """Ask a registry for the digest of a tag. `plain`: without TLS; `hosts`: the policy's. As the import account."""
    registry = _Peer(host_of(reference), plain, seconds, Destinations.of(reference, Reach(hosts)))
    try:
        answer = _manifest(reference, registry, {})
        if answer.status == http.client.UNAUTHORIZED and (token := _token(answer, registry)):
            answer = _manifest(reference, registry, {"Authorization": f"Bearer {token}"})
    except DestinationRefused as error:
        raise RedirectRefused(image=reference.canonical(), problem=str(error)) from error
    # RecursionError: JSON that is all brackets.
    except (OSError, http.client.HTTPException, ValueError, RecursionError) as error:
        raise RegistryUnreachable(image=reference.canonical(), problem=ascii(str(error))[:200]) from error
    return _digest(reference, answer)


def _manifest(reference: Reference, registry: _Peer, more: dict[str, str]) -> _Answer:
    path = f"/v2/{reference.repository}/manifests/{reference.tag}"
    return _request("HEAD", registry, path, {"Accept": ", ".join(MANIFESTS), **more})


def _digest(reference: Reference, answer: _Answer) -> str:
    image, problem = reference.canonical(), f"status {answer.status}"
    if answer.status == http.client.NOT_FOUND:
        raise ImageNotFound(image=image)
    if answer.status in (http.client.UNAUTHORIZED, http.client.FORBIDDEN):
        raise ImageForbidden(image=image, problem=problem)
    if answer.status == http.client.TOO_MANY_REQUESTS or answer.status >= http.client.INTERNAL_SERVER_ERROR:
        raise RegistryUnreachable(image=image, problem=problem)
    digest = answer.headers.get("docker-content-digest", "")
    if answer.status != http.client.OK or not is_digest(digest):
        raise ImportFailed(image=image, program="its registry", problem=f"{problem}, digest {digest[:80]!a}")
    return digest


def _token(answer: _Answer, registry: _Peer) -> str:
    """Return an anonymous token from the registry's token service, "" if it offers none."""
    scheme, _, rest = answer.headers.get("www-authenticate", "").partition(" ")
    parameters = dict(_PARAMETER.findall(rest))
    realm = urlsplit(parameters.pop("realm", ""))
    if scheme.lower() != "bearer" or not realm.hostname or realm.scheme not in ("https", *(["http"] * registry.plain)):
        return ""
    query = urlencode({name: parameters[name] for name in ("service", "scope") if name in parameters})
    peer = registry._replace(host=realm.netloc.rpartition("@")[2], plain=realm.scheme == "http")
    given = _request("GET", peer, f"{realm.path or '/'}?{query}", {})
    data = json.loads(given.body) if given.status == http.client.OK else {}
    token = data.get("token") or data.get("access_token") or "" if isinstance(data, dict) else ""
    return token if isinstance(token, str) and token.isascii() and token.isprintable() else ""


def _request(method: str, peer: _Peer, path: str, headers: dict[str, str]) -> _Answer:
    name, port = split(peer.host, 80 if peer.plain else 443)
    connection = http.client.HTTPConnection(name, port, timeout=peer.seconds)
    connected = peer.allowed.connect(name, port, peer.seconds)
    try:
        connection.sock = connected if peer.plain else _encrypted(connected, name)
        connection.request(method, path, headers={"User-Agent": "warmstart", **headers})
        response = connection.getresponse()
        found = {key.lower(): value for key, value in response.getheaders()}
        return _Answer(response.status, found, response.read(LONGEST_ANSWER))
    finally:
        connection.close()
        connected.close()


def _encrypted(connected: socket.socket, name: str) -> ssl.SSLSocket:
    return ssl.create_default_context().wrap_socket(connected, server_hostname=name)
