"""Resolve a tag at the registry's manifest endpoint, for enroot 3 without skopeo. Runs as the import account.

OCI distribution specification, pulling manifests; anonymous token authentication as in Docker's registry. Redirects are
not followed, and imports must be allowed to connect to the token service.
"""

from __future__ import annotations

import http.client
import json
import re
import socket
import ssl
from typing import NamedTuple
from urllib.parse import urlencode, urlsplit

from warmstart.images.importers.base import (
    ImageForbidden,
    ImageNotFound,
    ImportFailed,
    RedirectRefused,
    RegistryUnreachable,
)
from warmstart.images.importers.egress import DestinationRefused, Destinations, Reach, host_of, split
from warmstart.images.reference import Reference, is_digest

MANIFESTS = (
    "application/vnd.docker.distribution.manifest.list.v2+json",
    "application/vnd.oci.image.index.v1+json",
    "application/vnd.docker.distribution.manifest.v2+json",
    "application/vnd.oci.image.manifest.v1+json",
)
LONGEST_ANSWER = 1 << 20
_PARAMETER = re.compile(r'([a-z]+)="([^"]*)"')


class _Peer(NamedTuple):
    """A server (`host` is HOST or HOST:PORT), and how to reach it; `plain`: without TLS."""

    host: str
    plain: bool
    seconds: float
    allowed: Destinations


class _Answer(NamedTuple):
    """A response; header names in lower case."""

    status: int
    headers: dict[str, str]
    body: bytes


def ask(reference: Reference, *, plain: bool, hosts: tuple[str, ...], seconds: float) -> str:
    """Return the digest that a tag has in its registry. `plain`: without TLS; `hosts`: the policy's `images.hosts`.

    Raises what `Importer.resolve` raises.
    """
    registry = _Peer(host_of(reference), plain, seconds, Destinations.of(reference, Reach(hosts)))
    try:
        answer = _manifest(reference, registry, {})
        if answer.status == http.client.UNAUTHORIZED and (token := _token(answer, registry)):
            answer = _manifest(reference, registry, {"Authorization": f"Bearer {token}"})
    except DestinationRefused as error:
        raise RedirectRefused(image=reference.canonical(), problem=str(error)) from error
    # RecursionError: deeply nested JSON.
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
    """Return an anonymous token from the registry's token service, "" if there is none."""
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
