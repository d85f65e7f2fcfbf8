"""The registry's manifest endpoint, asked for the digest of a tag."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from warmstart.errors import WarmstartError
from warmstart.images.importers.base import (
    ImageForbidden,
    ImageNotFound,
    ImportFailed,
    RedirectRefused,
    RegistryUnreachable,
)
from warmstart.images.importers.registry import ask as ask_registry
from warmstart.images.reference import Reference

DIGEST = f"sha256:{'cd' * 32}"


class ManifestServer(BaseHTTPRequestHandler):
    """Answers /v2/STATUS/… with that status; `token` wants a token first; `elsewhere` redirects."""

    asked: list[str] = []  # noqa: RUF012 - of the class, reset for each test
    realm = ""
    given = b'{"token": "given"}'

    def do_HEAD(self) -> None:
        """Answer for a manifest."""
        self.asked.append(self.path)
        name = self.path.split("/")[2]
        authorized = self.headers["Authorization"] == "Bearer given"
        status = (200 if authorized else 401) if name == "token" else int(name)
        self.send_response(status)
        if name == "token":
            self.send_header("WWW-Authenticate", f'Bearer realm="{self.realm}",service="s",scope="repository:a:pull"')
        if status == 307:
            self.send_header("Location", "/v2/200/manifests/1")
        if status in (200, 206):
            self.send_header("Docker-Content-Digest", DIGEST if status == 200 else "sha256:../../x")
        self.end_headers()

    def do_GET(self) -> None:
        """Give a token."""
        self.asked.append(self.path)
        self.send_response(200)
        self.send_header("Content-Length", str(len(self.given)))
        self.end_headers()
        self.wfile.write(self.given)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - http.server's name
        """Say nothing."""


@pytest.fixture
def registry() -> Iterator[str]:
    """Return HOST:PORT of a registry."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), ManifestServer)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    host = f"127.0.0.1:{server.server_port}"
    ManifestServer.asked, ManifestServer.realm = (
        [],
        f"http://localhost:{server.server_port}/token",
    )  # not the registry's name
    yield host
    server.shutdown()
    thread.join()
    server.server_close()


def ask(registry: str, name: str, *hosts: str) -> str:
    """Ask for the digest of NAME:1; `hosts` are the policy's."""
    return ask_registry(Reference(registry, name, "1", ""), plain=True, hosts=hosts, seconds=5.0)


def token_service(registry: str) -> str:
    """Return what a policy has to name for the registry's tokens."""
    return f"localhost:{registry.rpartition(':')[2]}"


def test_the_digest_is_in_a_header(registry: str) -> None:
    """One HEAD request, no body."""
    assert ask(registry, "200") == DIGEST
    assert ManifestServer.asked == ["/v2/200/manifests/1"]


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("404", ImageNotFound),
        ("403", ImageForbidden),
        ("401", ImageForbidden),
        ("429", RegistryUnreachable),
        ("503", RegistryUnreachable),
        ("206", ImportFailed),
        ("307", ImportFailed),
    ],
)
def test_a_status_says_whose_fault_it_is(registry: str, name: str, kind: type[WarmstartError]) -> None:
    """A status is a class; a redirect is not followed, and what is no digest is not taken for one."""
    with pytest.raises(kind):
        ask(registry, name)
    assert len(ManifestServer.asked) == 1


def test_no_registry_sends_us_to_this_node(registry: str) -> None:
    """A realm on loopback is never asked: the attack that would reach a node's own services."""
    with pytest.raises(RedirectRefused, match="which imports may not reach"):
        ask(registry, "token")
    assert ManifestServer.asked == ["/v2/token/manifests/1"]


def test_a_token_is_fetched_where_that_is_allowed(registry: str) -> None:
    """From a host that the policy names: service and scope are passed on, the token comes back."""
    assert ask(registry, "token", token_service(registry)) == DIGEST
    assert ManifestServer.asked[1] == "/token?service=s&scope=repository%3Aa%3Apull"


@pytest.mark.parametrize(
    "given", [b"", b"[" * 500_000, b'{"token": 1}', b'{"token": "a\\nb: c"}', b"\xff", b'{"a":' * 100_000, b"1" * 5000]
)
def test_whatever_is_given_as_a_token(registry: str, given: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    """A registry's nonsense is the registry's matter, and no bug of ours."""
    monkeypatch.setattr(ManifestServer, "given", given)
    with pytest.raises((RegistryUnreachable, ImageForbidden)):
        ask(registry, "token", token_service(registry))


def test_nobody_there_is_an_outage(registry: str) -> None:
    """A closed port is the registry's outage, not a bug."""
    port = int(registry.rpartition(":")[2])
    with pytest.raises(RegistryUnreachable):
        # TLS to what speaks none
        ask_registry(Reference(f"127.0.0.1:{port}", "a", "1", ""), plain=False, hosts=(), seconds=5.0)
