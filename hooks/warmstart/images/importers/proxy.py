"""The HTTP proxy through which an import's programs reach their registry, and nothing else.

CONNECT and absolute-form requests (RFC 9110, 9.3.6; RFC 9112, 3.2.2). Bytes are passed on as they are: what is
decided here is whom they go to. Runs as the import account, in a process of its own (outlet.py).
"""

from __future__ import annotations

import re
import selectors
import socket
import threading
from collections.abc import Callable, Sequence
from typing import NamedTuple
from urllib.parse import urlsplit

from warmstart.images.importers.destinations import DestinationRefused, Destinations, split

LONGEST_HEAD = 1 << 16
CONNECT_S = 20.0
HEAD_S = 30.0
MOST_CONNECTIONS = 64
CHUNK = 1 << 16
_HOP = (b"proxy-", b"connection:", b"keep-alive:")
# Whoever is asked next must read a request as we do: an URI's own signs (RFC 3986) and no fragment, hosts as DNS and
# addresses have them, lines that end in one way.
_TARGET = re.compile(r"[A-Za-z0-9._~:/?\[\]@!$&'()*+,;=%-]+")
_HOST = re.compile(r"[A-Za-z0-9._-]{1,255}|[0-9A-Fa-f:.]{2,45}")
_STRAY = re.compile(rb"\0|\r(?!\n)|(?<!\r)\n")
_GRANTED = re.compile(rb"HTTP/1\.[01] 2[0-9]{2}[ \r]")
Tell = Callable[[str], None]


class ProxyRequest(NamedTuple):
    """A request's head: whom it is for, and what that one is sent; `tunnel`: nothing, it is CONNECT."""

    host: str
    port: int
    tunnel: bool
    head: bytes


class NotUnderstood(Exception):
    """Not a request for a proxy."""


def serve(
    proxy: socket.socket,
    relays: Sequence[tuple[socket.socket, tuple[str, int]]],
    destinations: Destinations,
    tell: Tell,
) -> None:
    """Answer for ever: requests at `proxy`; connections to each relay go to its host and port as they are.

    `tell` gets a sentence for each destination that was refused.
    """
    free = threading.BoundedSemaphore(MOST_CONNECTIONS)

    def handle(client: socket.socket, whom: tuple[str, int] | None) -> None:
        try:
            with client:
                _relay(client, *whom) if whom else _answer(client, destinations, tell)
        except (OSError, NotUnderstood):
            return  # whoever hung up, or a proxy that is none: the other side sees that it is over
        finally:
            free.release()

    with selectors.DefaultSelector() as selector:
        selector.register(proxy, selectors.EVENT_READ, None)
        for listening, whom in relays:
            selector.register(listening, selectors.EVENT_READ, whom)
        while True:
            for key, _ in selector.select():
                free.acquire()
                assert isinstance(key.fileobj, socket.socket)
                client, _ = key.fileobj.accept()
                threading.Thread(target=handle, args=(client, key.data), daemon=True).start()


def _relay(client: socket.socket, host: str, port: int) -> None:
    with socket.create_connection((host, port), CONNECT_S) as server:
        _pump(client, server)


def _answer(client: socket.socket, destinations: Destinations, tell: Tell) -> None:
    client.settimeout(HEAD_S)
    try:
        head, rest = _read_head(client)
        asked = parse(head)
        upstream = destinations.reach.proxy
        if upstream:
            destinations.check(asked.host, asked.port)
            server = socket.create_connection(split(upstream, 80), CONNECT_S)
        else:
            server = destinations.connect(asked.host, asked.port, CONNECT_S)
    except (NotUnderstood, UnicodeError, ValueError):
        _refuse(client, "400 Bad Request")
    except DestinationRefused as error:
        tell(str(error))
        _refuse(client, f"403 Forbidden: {error}")
    except OSError as error:
        _refuse(client, f"502 Bad Gateway: {error.strerror or 'no answer'}")
    else:
        with server:
            if upstream and asked.tunnel:
                server.settimeout(HEAD_S)
                server.sendall(head)
                answer, early = _read_head(server)
                client.sendall(answer + early)
                if not _GRANTED.match(answer):
                    return  # what follows would be a request that nobody has looked at
                server.sendall(rest)
            elif upstream:
                server.sendall(_closing(head) + rest)
            elif asked.tunnel:
                client.sendall(b"HTTP/1.1 200 Connection established\r\n\r\n")
                server.sendall(rest)
            else:
                server.sendall(asked.head + rest)
            _pump(client, server)


def parse(head: bytes) -> ProxyRequest:
    """Return whom a request's head is for; `NotUnderstood`, `ValueError`."""
    line, _, headers = head.partition(b"\r\n")
    words = line.decode("ascii").split(" ")
    if len(words) != 3 or _STRAY.search(head):
        raise NotUnderstood
    method, target, version = words
    if not method.isalpha() or version not in ("HTTP/1.0", "HTTP/1.1") or not _TARGET.fullmatch(target):
        raise NotUnderstood
    if method == "CONNECT":
        return ProxyRequest(*_whom(target, 443), tunnel=True, head=b"")
    url = urlsplit(target)
    if url.scheme != "http" or not url.netloc:
        raise NotUnderstood
    host, port = _whom(url.netloc.rpartition("@")[2], 80)
    path = (url.path or "/") + (f"?{url.query}" if url.query else "")
    own = f"{method} {path} {version}\r\n".encode() + headers
    return ProxyRequest(host, port, tunnel=False, head=_closing(own))


def _whom(text: str, default: int) -> tuple[str, int]:
    host, port = split(text, default)
    if not _HOST.fullmatch(host):
        raise NotUnderstood
    return host, port


def _closing(head: bytes) -> bytes:
    """Return a head without what was meant for us, and with `Connection: close`: one connection, one destination."""
    first, *lines = head.rstrip(b"\r\n").split(b"\r\n")
    kept = [line for line in lines if not line.lower().startswith(_HOP)]
    return b"\r\n".join([first, *kept, b"Connection: close", b"", b""])


def _read_head(client: socket.socket) -> tuple[bytes, bytes]:
    data = b""
    while b"\r\n\r\n" not in data:
        chunk = client.recv(CHUNK)
        if not chunk or len(data) > LONGEST_HEAD:
            raise NotUnderstood
        data += chunk
    head, _, rest = data.partition(b"\r\n\r\n")
    return head + b"\r\n\r\n", rest


def _refuse(client: socket.socket, status: str) -> None:
    # The reason phrase is what Go and curl print.
    client.sendall(f"HTTP/1.1 {status}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n".encode("ascii", "replace"))


def _pump(one: socket.socket, other: socket.socket) -> None:
    """Pass bytes both ways until both have ended; the one that ends first lets the other finish."""
    for end in (one, other):
        end.settimeout(None)
    back = threading.Thread(target=_pass_on, args=(other, one), daemon=True)
    back.start()
    _pass_on(one, other)
    back.join()


def _pass_on(source: socket.socket, target: socket.socket) -> None:
    try:
        while data := source.recv(CHUNK):
            target.sendall(data)
        target.shutdown(socket.SHUT_WR)
    except OSError:
        for end in (source, target):
            _hang_up(end)


def _hang_up(end: socket.socket) -> None:
    try:
        end.shutdown(socket.SHUT_RDWR)
    except OSError:
        return
