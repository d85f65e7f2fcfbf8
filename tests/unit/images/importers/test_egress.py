"""An import's way out: where it may go, the proxy that checks that, and the outlet it is confined to."""

from __future__ import annotations

import re
import socket
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import NamedTuple

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from warmstart.images.importers import egress
from warmstart.images.importers.egress import DestinationRefused, Destinations, NotUnderstood, Reach, is_public, split
from warmstart.images.importers.egress import parse as parse_request
from warmstart.images.reference import parse

pytestmark = pytest.mark.threat(11)


@pytest.mark.parametrize(
    "address",
    [
        "127.0.0.1", "127.8.8.8", "::1", "::ffff:127.0.0.1", "0.0.0.0", "::",
        "169.254.169.254", "::ffff:169.254.169.254", "fe80::1%eth0", "fd00:ec2::254",
        "10.1.2.3", "172.16.0.1", "192.168.1.1", "100.64.0.1", "fd12::1", "224.0.0.1", "ff02::1",
        "64:ff9b::a01:203", "64:ff9b::7f00:1", "2002:7f00:1::1", "2002:a9fe:a9fe::1", "::ffff:10.1.2.3",
        "::10.1.2.3", "fec0::1", "2001:0:1::1", "2001:db8::1", "4000::1",
    ],
)  # fmt: skip
def test_not_public(address: str) -> None:
    """No registry may send us there."""
    assert not is_public(address)


@pytest.mark.parametrize("address", ["1.1.1.1", "2606:4700::1111", "::ffff:1.1.1.1", "64:ff9b::101:101"])
def test_public(address: str) -> None:
    """Where registries keep what they have."""
    assert is_public(address)


@pytest.mark.threat(35)
@pytest.mark.parametrize(
    ("host", "port", "named"),
    [
        ("reg.io", 5000, True),
        ("REG.io", 5000, True),
        ("reg.io", 5001, False),
        ("evil-reg.io", 5000, False),
        ("minio.site", 443, True),
        ("minio.site", 80, True),
        ("minio.site", 9000, False),
        ("minio.site", 22, False),
        ("a.b.blobs.site", 443, True),
        ("a.b.blobs.site", 8080, False),
        ("a.b.blobs.site", 80, True),
        ("blobs.site", 80, False),
        ("xblobs.site", 80, False),
        ("one.site", 443, True),
        ("one.site", 80, False),
    ],
)
def test_what_the_policy_names(host: str, port: int, named: bool) -> None:
    """Whole names, with the port that is given, else the default ones; a star stands for whole labels."""
    reach = Reach(("minio.site", "*.blobs.site", "one.site:443"))
    assert Destinations.of(parse("reg.io:5000/a:1"), reach).is_trusted(host, port) is named


@pytest.mark.threat(35)
@pytest.mark.parametrize(
    ("port", "named"), [(443, True), (80, True), (22, False), (5432, False), (6379, False), (8443, False)]
)
def test_a_registry_without_a_port_is_its_default_ports(port: int, named: bool) -> None:
    """What else listens on that host is another service, wherever the registry sends an import."""
    assert Destinations.of(parse("reg.io/a:1"), Reach()).is_trusted("reg.io", port) is named


@pytest.mark.threat(35)
def test_a_redirect_to_another_port_of_the_registry_connects_to_nothing() -> None:
    """Its host is the site's, and the service there trusts whoever is inside."""
    with socket.create_server(("127.0.0.1", 0)) as other:
        other.settimeout(0.0)
        port = other.getsockname()[1]
        with pytest.raises(DestinationRefused, match=f"localhost:{port} "):
            Destinations("localhost").check("localhost", port)
        with pytest.raises(DestinationRefused, match=f"localhost:{port} "):
            Destinations("localhost").connect("localhost", port, 5.0)
        with pytest.raises(BlockingIOError):
            other.accept()


def test_docker_hub_is_asked_where_it_answers() -> None:
    """`docker.io` is a name of images, not of a host."""
    hub = Destinations.of(parse("ubuntu"), Reach())
    assert hub.is_trusted("registry-1.docker.io", 443)
    assert not hub.is_trusted("docker.io", 443)


def test_the_address_decides_and_not_the_name() -> None:
    """A name that means loopback is refused before anything is connected; one that the policy names is connected to."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        server.settimeout(0.0)
        nowhere = Destinations("reg.io:5000", Reach())
        with pytest.raises(DestinationRefused, match="which imports may not reach"):
            nowhere.connect("localhost", port, 5.0)
        with pytest.raises(DestinationRefused):
            nowhere.check("localhost", port)
        with pytest.raises(BlockingIOError):
            server.accept()
        named = Destinations("reg.io:5000", Reach((f"localhost:{port}",)))
        named.check("localhost", port)
        named.connect("localhost", port, 5.0).close()
        server.accept()[0].close()


def test_what_a_proxy_may_know_is_left_to_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """A name that means nothing on this node is for the site's proxy to refuse."""

    def unknown(*_: object, **__: object) -> None:
        raise socket.gaierror

    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    Destinations("reg.io", Reach()).check("only.the.proxy.knows", 443)


@pytest.mark.parametrize(
    "host", ["127.0.0.1.", "169.254.169.254.", "localhost.", "localhost..", "1.2.3.0x", "1.2.3.999"]
)
def test_what_a_proxy_may_take_for_an_address(host: str) -> None:
    """Some drop a dot at the end, or read numbers that this node's resolver does not."""
    with pytest.raises(DestinationRefused):
        Destinations("reg.io", Reach()).check(host, 80)
    with pytest.raises((DestinationRefused, OSError)):
        Destinations("reg.io", Reach()).connect(host, 80, 5.0)


def test_a_dot_at_the_end_changes_no_name() -> None:
    """`reg.io.` is the registry."""
    assert Destinations("reg.io:5000").is_trusted("reg.io.", 5000)


def test_this_node_is_refused_at_a_public_address_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nodes may have one, and behind it what only they themselves should reach."""
    monkeypatch.setattr(egress, "is_public", lambda _: True)
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        server.settimeout(0.0)
        with pytest.raises(DestinationRefused, match="which imports may not reach"):
            Destinations("reg.io").connect("127.0.0.1", port, 5.0)
        with pytest.raises(DestinationRefused):
            Destinations("reg.io").check("127.0.0.1", port)
        with pytest.raises(BlockingIOError):
            server.accept()


@pytest.mark.parametrize(
    ("text", "parts"),
    [("a", ("a", 443)), ("a:1", ("a", 1)), ("[::1]", ("::1", 443)), ("[::1]:80", ("::1", 80))],
)
def test_host_and_port(text: str, parts: tuple[str, int]) -> None:
    """A port where there is one."""
    assert split(text, 443) == parts


@pytest.mark.parametrize("text", ["", ":80", "a:0", "a:65536", "a:x", "a:-1", "a:²"])
def test_what_is_no_host_and_port(text: str) -> None:
    """Refused, and not guessed at."""
    with pytest.raises(ValueError, match="not HOST:PORT"):
        split(text, 443)


# The proxy of an import: whom it asks for what, what it refuses, and that bytes pass as they are.


BLOB = bytes(range(256)) * 4096


def test_a_tunnel_is_for_its_host() -> None:
    """CONNECT HOST:PORT, as TLS is asked for."""
    asked = parse_request(b"CONNECT reg.io:443 HTTP/1.1\r\nHost: reg.io:443\r\n\r\n")
    assert asked == ("reg.io", 443, True, b"")


def test_a_request_is_rewritten_for_its_host() -> None:
    """In origin form, for one connection, without what was meant for the proxy."""
    asked = parse_request(
        b"GET http://reg.io:5000/v2/a?b=c HTTP/1.1\r\nHost: reg.io:5000\r\nProxy-Connection: Keep-Alive\r\n"
        b"Connection: keep-alive\r\nAccept: */*\r\n\r\n"
    )
    assert asked[:3] == ("reg.io", 5000, False)
    assert asked.head == b"GET /v2/a?b=c HTTP/1.1\r\nHost: reg.io:5000\r\nAccept: */*\r\nConnection: close\r\n\r\n"
    assert parse_request(b"GET http://reg.io HTTP/1.0\r\n\r\n").head == b"GET / HTTP/1.0\r\nConnection: close\r\n\r\n"
    assert parse_request(b"GET http://user:word@reg.io/x HTTP/1.1\r\n\r\n").host == "reg.io"


@pytest.mark.parametrize(
    "head",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        b"GET ftp://reg.io/ HTTP/1.1\r\n\r\n",
        b"GET https://reg.io/ HTTP/1.1\r\n\r\n",
        b"CONNECT reg.io:0 HTTP/1.1\r\n\r\n",
        b"CONNECT  HTTP/1.1\r\n\r\n",
        b"nonsense\r\n\r\n",
        b"\xff\xfe\r\n\r\n",
        b"GET http://[::1 HTTP/1.1\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\n",
        # What the next proxy could read in another way than we do.
        b"GET http://a/ HTTP/1.1\nHost: b\r\n\r\n",
        b"GET http://a/ HTTP/1.1\r\nX: y\nConnection: keep-alive\r\n\r\n",
        b"GET http://b\\@a/ HTTP/1.1\r\n\r\n",
        b"GET http://b#@a/ HTTP/1.1\r\n\r\n",
        b"CONNECT a\0.b:443 HTTP/1.1\r\n\r\n",
        b"CONNECT a%2eb:443 HTTP/1.1\r\n\r\n",
        b"CONNECT b/@a:443 HTTP/1.1\r\n\r\n",
    ],
)
def test_what_is_no_request_for_a_proxy(head: bytes) -> None:
    """Refused, and not guessed at."""
    with pytest.raises((NotUnderstood, ValueError)):
        parse_request(head)


SIGNS = st.lists(st.sampled_from(list(b"ab01.:/@[]%?#\\ \r\n\t\0")), max_size=40).map(bytes)


@given(st.sampled_from([b"GET http://", b"CONNECT "]), SIGNS, SIGNS)
@example(b"GET http://", b"a", b"X: y\r\nConnection: keep-alive")
def test_whatever_it_is_sent(start: bytes, target: bytes, headers: bytes) -> None:
    """Refused, or one host of the signs that hosts have, and one request that ends its connection."""
    try:
        asked = parse_request(start + target + b" HTTP/1.1\r\n" + headers + b"\r\n\r\n")
    except (NotUnderstood, ValueError):
        return
    assert re.fullmatch(r"[0-9a-z.:]+", asked.host)
    assert 0 < asked.port < 65536
    assert asked.tunnel or asked.head.endswith(b"\r\nConnection: close\r\n\r\n")
    assert not re.search(rb"\0|(?<!\r)\n|\r(?!\n)", asked.head)


class Running(NamedTuple):
    """A proxy that serves, with a server behind it that answers once; `asked` is what that one was sent."""

    port: int
    behind: int
    asked: list[bytes]
    told: list[str]


@contextmanager
def serving(destinations: Destinations, answer: bytes = b"HTTP/1.0 200 OK\r\n\r\n" + BLOB) -> Iterator[Running]:
    """Serve from threads that end with the test's process."""
    with socket.create_server(("127.0.0.1", 0)) as front, socket.create_server(("127.0.0.1", 0)) as back:
        asked: list[bytes] = []
        told: list[str] = []
        back.settimeout(10)

        def respond() -> None:
            try:
                connection, _ = back.accept()
            except OSError:
                return
            with connection:
                connection.settimeout(10)
                asked.append(connection.recv(65536))
                connection.sendall(answer)

        responder = threading.Thread(target=respond, daemon=True)
        responder.start()
        behind = back.getsockname()[1]
        proxy = destinations.reach.proxy
        own = destinations._replace(
            registry=destinations.registry.format(port=behind),
            reach=destinations.reach._replace(proxy=proxy.format(port=behind) if proxy else None),
        )
        threading.Thread(target=egress.serve, args=(front, [], own, told.append), daemon=True).start()
        yield Running(front.getsockname()[1], behind, asked, told)
        back.shutdown(socket.SHUT_RDWR)
        responder.join(10)


def exchange(port: int, *parts: bytes) -> bytes:
    """Send to the proxy, one part after each answer; return all that came."""
    received = b""
    with socket.create_connection(("127.0.0.1", port), 10) as client:
        for part in parts[:-1]:
            client.sendall(part)
            received += client.recv(65536)
        client.sendall(parts[-1])
        while data := client.recv(65536):
            received += data
    return received


def test_passes_bytes_through_a_tunnel() -> None:
    """Both ways, every byte."""
    with serving(Destinations("127.0.0.1:{port}")) as running:
        connect = f"CONNECT 127.0.0.1:{running.behind} HTTP/1.1\r\n\r\n".encode()
        received = exchange(running.port, connect, b"\x16\x03\x01 whatever TLS says")
    assert received.startswith(b"HTTP/1.1 200 ")
    assert received.endswith(BLOB)
    assert running.asked == [b"\x16\x03\x01 whatever TLS says"]
    assert running.told == []


def test_passes_a_plain_request_on() -> None:
    """To the registry of the image, in the form that it expects."""
    with serving(Destinations("127.0.0.1:{port}")) as running:
        received = exchange(running.port, f"GET http://127.0.0.1:{running.behind}/v2/ HTTP/1.1\r\n\r\n".encode())
    assert received.endswith(BLOB)
    assert running.asked == [b"GET /v2/ HTTP/1.1\r\nConnection: close\r\n\r\n"]


@pytest.mark.parametrize("form", ["CONNECT 127.0.0.1:{port} HTTP/1.1", "GET http://127.0.0.1:{port}/ HTTP/1.1"])
def test_refuses_what_is_not_allowed(form: str) -> None:
    """403 with the reason, which is told to the hook as well; nothing was connected."""
    with serving(Destinations("reg.io")) as running:
        received = exchange(running.port, f"{form.format(port=running.behind)}\r\n\r\n".encode())
    assert received.startswith(b"HTTP/1.1 403 Forbidden: 127.0.0.1:")
    assert running.told == [f"127.0.0.1:{running.behind} resolves to 127.0.0.1, which imports may not reach"]
    assert running.asked == []


def test_a_silent_host_is_an_outage() -> None:
    """Nobody listens there: 502, which importers take for one."""
    with socket.create_server(("127.0.0.1", 0)) as gone:
        port = gone.getsockname()[1]
    with serving(Destinations(f"127.0.0.1:{port}")) as running:
        received = exchange(running.port, f"CONNECT 127.0.0.1:{port} HTTP/1.1\r\n\r\n".encode())
    assert received.startswith(b"HTTP/1.1 502 Bad Gateway: Connection refused")
    assert running.told == []


@pytest.mark.parametrize("target", ["CONNECT reg.invalid:443 HTTP/1.1", "GET http://reg.invalid/v2/ HTTP/1.1"])
def test_asks_the_sites_proxy(target: str) -> None:
    """It gets the request as it came, for a name that only it may know."""
    with serving(Destinations("reg.io", Reach(proxy="127.0.0.1:{port}"))) as running:
        received = exchange(running.port, f"{target}\r\nHost: x\r\n\r\n".encode())
    assert received.endswith(BLOB)
    assert running.asked[0].startswith(target.encode())


def test_the_sites_proxy_is_not_asked_for_what_is_refused() -> None:
    """It may reach what an import may not."""
    with serving(Destinations("reg.io", Reach(proxy="127.0.0.1:{port}"))) as running:
        received = exchange(running.port, b"CONNECT 169.254.169.254:80 HTTP/1.1\r\n\r\n")
    assert received.startswith(b"HTTP/1.1 403 ")
    assert running.asked == []


def test_a_sites_proxy_that_is_down_is_named() -> None:
    """Go prints the reason phrase: who reads it looks at the proxy, not at the registry."""
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    with serving(Destinations("reg.invalid", Reach(proxy=f"127.0.0.1:{port}"))) as running:
        received = exchange(running.port, b"CONNECT reg.invalid:443 HTTP/1.1\r\n\r\n")
    words = f"HTTP/1.1 502 Bad Gateway: images.proxy does not answer: 127.0.0.1:{port}: Connection refused"
    assert received.startswith(words.encode())


def test_a_tunnel_that_the_sites_proxy_refuses_is_no_way_to_it() -> None:
    """What follows is not passed on: it would be a request that nobody looked at."""
    asked: list[bytes] = []

    def refuse() -> None:
        connection, _ = upstream.accept()
        with connection, suppress(OSError):
            connection.settimeout(10)
            asked.append(connection.recv(65536))
            connection.sendall(b"HTTP/1.1 503 No\r\nContent-Length: 0\r\n\r\n")
            while data := connection.recv(65536):
                asked.append(data)

    with socket.create_server(("127.0.0.1", 0)) as upstream, socket.create_server(("127.0.0.1", 0)) as front:
        reach = Reach(proxy=f"127.0.0.1:{upstream.getsockname()[1]}")
        threading.Thread(
            target=egress.serve, args=(front, [], Destinations("reg.invalid", reach), print), daemon=True
        ).start()
        refuser = threading.Thread(target=refuse, daemon=True)
        refuser.start()
        early = b"CONNECT reg.invalid:443 HTTP/1.1\r\n\r\nGET http://169.254.169.254/early HTTP/1.1\r\n\r\n"
        late = b"GET http://169.254.169.254/late HTTP/1.1\r\n\r\n"
        received = b""
        with suppress(ConnectionError):
            received = exchange(front.getsockname()[1], early, late)
        refuser.join(10)
    assert received == b"" or received.startswith(b"HTTP/1.1 503 No")
    assert asked == [b"CONNECT reg.invalid:443 HTTP/1.1\r\n\r\n"]


def waiting_at(listening: socket.socket, number: int) -> bool:
    """Wait until so many connections wait to be accepted: of a listening socket, TCP_INFO's `tcpi_unacked` says so."""
    for _ in range(500):
        if struct.unpack_from("8x4xIIII", listening.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 28))[-1] == number:
            return True
        time.sleep(0.01)
    return False


def test_so_many_connections_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """An importer that was taken over makes no threads outside by the thousand; the others wait for their turn."""
    monkeypatch.setattr(egress, "MOST_CONNECTIONS", 2)
    with socket.create_server(("127.0.0.1", 0)) as front:
        threading.Thread(target=egress.serve, args=(front, [], Destinations("reg.io"), print), daemon=True).start()
        clients = [socket.create_connection(front.getsockname(), 10) for _ in range(6)]
        for left in (4, 3, 2, 1, 0):
            assert waiting_at(front, left)
            first = clients.pop(0)
            first.sendall(b"nonsense\r\n\r\n")
            assert first.recv(100).startswith(b"HTTP/1.1 400 ")
            first.close()
        clients[0].close()


def test_nonsense_and_endless_heads_end() -> None:
    """An importer that was taken over gets no more of it than an answer."""
    with serving(Destinations("reg.io")) as running:
        assert exchange(running.port, b"nonsense\r\n\r\n").startswith(b"HTTP/1.1 400 ")
        with socket.create_connection(("127.0.0.1", running.port), 10) as client:
            client.sendall(b"a" * (egress.LONGEST_HEAD + egress.CHUNK + 1))
            try:
                assert client.recv(100).startswith(b"HTTP/1.1 400 ")
            except ConnectionResetError:
                return
