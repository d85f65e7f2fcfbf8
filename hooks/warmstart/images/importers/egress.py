"""The only way out for an import's programs: an HTTP proxy that judges every address it connects to.

The programs run in a network namespace that holds nothing but the proxy's socket, and the registry's address if that
is on this node's loopback. Outside, a process of the import account accepts their connections and connects for them.
It lives and dies with one program.

The proxy takes CONNECT and absolute-form requests (RFC 9110, 9.3.6; RFC 9112, 3.2.2) and passes bytes on unchanged.
It allows the image's registry, the hosts of the policy, and public addresses. A registry can redirect anywhere, so
the address is judged, not the name, which may resolve differently a moment later.
"""

from __future__ import annotations

import ipaddress
import os
import re
import selectors
import signal
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from typing import NamedTuple
from urllib.parse import urlsplit

from warmstart.errors import ResourceError
from warmstart.host.identity import Identity, close_others, detach, surrender
from warmstart.host.netns import Enclosure, enclosure
from warmstart.images.reference import DOCKER_HUB, Reference

PROXY = ("127.0.0.1", 3128)
LONGEST_REFUSAL = 4096
LONGEST_HEAD = 1 << 16
CHUNK = 1 << 16
CONNECT_S = 20.0
HEAD_S = 30.0
MOST_CONNECTIONS = 64
_HOP = (b"proxy-", b"connection:", b"keep-alive:")
# The next server must read a request as we do. So only characters of a URI (RFC 3986), no fragment, hosts as in DNS
# or addresses, and one kind of line end.
_TARGET = re.compile(r"[A-Za-z0-9._~:/?\[\]@!$&'()*+,;=%-]+")
_HOST = re.compile(r"[A-Za-z0-9._-]{1,255}|[0-9A-Fa-f:.]{2,45}")
_STRAY = re.compile(rb"\0|\r(?!\n)|(?<!\r)\n")
_GRANTED = re.compile(rb"HTTP/1\.[01] 2[0-9]{2}[ \r]")
# IPv6 addresses that embed an IPv4 one: RFC 6052 (NAT64); 6to4 (RFC 3056) is known to `ipaddress`.
_NAT64 = ipaddress.ip_network("64:ff9b::/96")
# The last label of what is an IPv4 address, as browsers read it (url.spec.whatwg.org, "ends in a number").
_NUMBER = re.compile(r"[0-9]+|0[xX][0-9a-fA-F]*")
_UNICAST = ipaddress.ip_network("2000::/3")  # all that IANA assigns of IPv6


class EgressUnusable(ResourceError):
    """This node gives an import no network of its own."""

    code = "import-no-egress"
    template = "no network namespace for an import on this node: {problem}"
    hint = "does root have CAP_SYS_ADMIN where slurmd runs? user.max_net_namespaces, file-max, memory?"


class NotUnderstood(Exception):
    """Not a request for a proxy."""


class DestinationRefused(Exception):
    """An import was sent where it may not go; its text says where."""


class Reach(NamedTuple):
    """What the policy lets imports reach: `hosts` are HOST, HOST:PORT or *.DOMAIN, `proxy` is HOST:PORT or ""."""

    hosts: tuple[str, ...] = ()
    proxy: str = ""


class Destinations(NamedTuple):
    """What one import may reach; `registry`, HOST or HOST:PORT, is its image's."""

    registry: str
    reach: Reach = Reach()

    @classmethod
    def of(cls, reference: Reference, reach: Reach) -> Destinations:
        """Return what an import of an image may reach."""
        return cls(host_of(reference), reach)

    def connect(self, host: str, port: int, seconds: float) -> socket.socket:
        """Connect to a host and port. Raises `DestinationRefused`, or `OSError` where nobody answers."""
        trusted = self.is_trusted(host, port)
        problem: OSError = OSError("it has no address")
        refused = ""
        for family, kind, protocol, _, address in socket.getaddrinfo(host.rstrip("."), port, type=socket.SOCK_STREAM):
            if not trusted and not _may_be_reached(family, address):
                refused = str(address[0])
                continue
            made = socket.socket(family, kind, protocol)
            made.settimeout(seconds)
            try:
                made.connect(address)
            except OSError as error:
                made.close()
                problem = error
            else:
                return made
        if refused:
            raise DestinationRefused(f"{host}:{port} is at {refused}, where no registry may send us")
        raise problem

    def check(self, host: str, port: int) -> None:
        """Raise `DestinationRefused` for what `connect` would refuse, if this node can resolve its name.

        For a host that an upstream proxy connects to; that may know names that this node does not.
        """
        if self.is_trusted(host, port):
            return
        name = host.rstrip(".")
        try:
            found = socket.getaddrinfo(name, port, type=socket.SOCK_STREAM)
        except OSError:
            if _NUMBER.fullmatch(name.rpartition(".")[2]):
                raise DestinationRefused(f"{host}:{port} is no name, and no address that we know") from None
            return
        if refused := [item[4][0] for item in found if not _may_be_reached(item[0], item[4])]:
            raise DestinationRefused(f"{host}:{port} is at {refused[0]}, where no registry may send us")

    def is_trusted(self, host: str, port: int) -> bool:
        """Tell whether this is the registry or one of the policy's hosts, which may have any address."""
        name = host.lower().rstrip(".")
        return any(_fits(pattern, name, port) for pattern in (self.registry, *self.reach.hosts))


class Egress(NamedTuple):
    """A network namespace, the variables that lead out of it, and the pipe that reports refusals."""

    namespace: int  # descriptor
    environment: dict[str, str]
    refusals: int  # descriptor of a pipe

    def refused(self) -> str:
        """Return what was refused so far, in words; "" if nothing was."""
        try:
            return os.read(self.refusals, LONGEST_REFUSAL).decode("ascii", "replace").partition("\n")[0]
        except BlockingIOError:
            return ""


class ProxyRequest(NamedTuple):
    """A request to the proxy; `head` is what its host is sent, nothing for a CONNECT (`tunnel`)."""

    host: str
    port: int
    tunnel: bool
    head: bytes


@contextmanager
def opened(identity: Identity, destinations: Destinations) -> Iterator[Egress]:
    """Give a way out to these destinations; the process that connects runs as `identity`."""
    relayed = _relayed(destinations.registry)
    with ExitStack() as stack:
        try:
            made = stack.enter_context(enclosure([PROXY, *relayed]))
            refusals, report = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
            stack.callback(os.close, refusals)
            stack.callback(os.close, report)
            parent, pid = os.getpid(), os.fork()
        except OSError as error:
            raise EgressUnusable(problem=error.strerror) from error
        if not pid:
            try:  # nothing may escape into the hook's own code
                _give_up_root(identity, {report, *(one.fileno() for one in made.sockets)}, parent)
                _serve(made, relayed, destinations, report)
            finally:
                os._exit(0)
        stack.callback(_end, pid)
        for listening in made.sockets:  # a dead proxy then refuses connections and lets nobody wait
            listening.close()
        yield Egress(made.fd, _environment(), refusals)


def _end(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)


def _serve(made: Enclosure, relayed: Sequence[tuple[str, int]], destinations: Destinations, report: int) -> None:
    """Serve in the process outside until the hook ends it."""

    def report_refusal(sentence: str) -> None:
        os.write(report, f"{ascii(sentence[:500])[1:-1]}\n".encode())

    serve(made.sockets[0], list(zip(made.sockets[1:], relayed, strict=True)), destinations, report_refusal)


def _give_up_root(identity: Identity, keep: set[int], parent: int) -> None:
    detach()
    close_others({0, 1, 2, *keep})
    surrender(identity)
    if os.getppid() != parent:
        os._exit(0)  # it died before its death could be announced to us


def _relayed(registry: str) -> list[tuple[str, int]]:
    """Return a registry's address on loopback, for which Go uses no proxy; [] if it is elsewhere."""
    try:
        host, port = split(registry, 443)
        address = "127.0.0.1" if host == "localhost" else host
        is_here = ipaddress.ip_address(address).is_loopback
    except ValueError:
        return []
    return [(address, port)] if is_here and (address, port) != PROXY else []


def _environment() -> dict[str, str]:
    proxy = f"http://{PROXY[0]}:{PROXY[1]}"
    # no_proxy keeps /etc/enroot/enroot.conf from naming hosts that bypass the proxy.
    return {"http_proxy": proxy, "https_proxy": proxy, "all_proxy": proxy, "no_proxy": "none.invalid"}


def serve(
    proxy: socket.socket,
    relays: Sequence[tuple[socket.socket, tuple[str, int]]],
    destinations: Destinations,
    report_refusal: Callable[[str], None],
) -> None:
    """Serve requests at `proxy` for ever; pass connections to a relay on to its host and port.

    `report_refusal` gets a sentence for each refused destination.
    """
    free = threading.BoundedSemaphore(MOST_CONNECTIONS)

    def handle(client: socket.socket, whom: tuple[str, int] | None) -> None:
        try:
            with client:
                _relay(client, *whom) if whom else _answer(client, destinations, report_refusal)
        except (OSError, NotUnderstood):
            return  # one side hung up, or upstream is no proxy; closing tells the other side
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


def _answer(client: socket.socket, destinations: Destinations, report_refusal: Callable[[str], None]) -> None:
    client.settimeout(HEAD_S)
    try:
        head, rest = _read_head(client)
        request = parse(head)
        upstream = destinations.reach.proxy
        if upstream:
            destinations.check(request.host, request.port)
            server = socket.create_connection(split(upstream, 80), CONNECT_S)
        else:
            server = destinations.connect(request.host, request.port, CONNECT_S)
    except (NotUnderstood, UnicodeError, ValueError):
        _refuse(client, "400 Bad Request")
    except DestinationRefused as error:
        report_refusal(str(error))
        _refuse(client, f"403 Forbidden: {error}")
    except OSError as error:
        _refuse(client, f"502 Bad Gateway: {error.strerror or 'no answer'}")
    else:
        with server:
            if upstream and request.tunnel:
                server.settimeout(HEAD_S)
                server.sendall(head)
                answer, early = _read_head(server)
                client.sendall(answer + early)
                if not _GRANTED.match(answer):
                    return  # what follows would be a request that was not checked
                server.sendall(rest)
            elif upstream:
                server.sendall(_closing(head) + rest)
            elif request.tunnel:
                client.sendall(b"HTTP/1.1 200 Connection established\r\n\r\n")
                server.sendall(rest)
            else:
                server.sendall(request.head + rest)
            _pump(client, server)


def parse(head: bytes) -> ProxyRequest:
    """Parse a request's head. Raises `NotUnderstood` or `ValueError`."""
    line, _, headers = head.partition(b"\r\n")
    words = line.decode("ascii").split(" ")
    if len(words) != 3 or _STRAY.search(head):
        raise NotUnderstood
    method, target, version = words
    if not method.isalpha() or version not in ("HTTP/1.0", "HTTP/1.1") or not _TARGET.fullmatch(target):
        raise NotUnderstood
    if method == "CONNECT":
        return ProxyRequest(*_host_and_port(target, 443), tunnel=True, head=b"")
    url = urlsplit(target)
    if url.scheme != "http" or not url.netloc:
        raise NotUnderstood
    host, port = _host_and_port(url.netloc.rpartition("@")[2], 80)
    path = (url.path or "/") + (f"?{url.query}" if url.query else "")
    own = f"{method} {path} {version}\r\n".encode() + headers
    return ProxyRequest(host, port, tunnel=False, head=_closing(own))


def _host_and_port(text: str, default: int) -> tuple[str, int]:
    host, port = split(text, default)
    if not _HOST.fullmatch(host):
        raise NotUnderstood
    return host, port


def _closing(head: bytes) -> bytes:
    """Return a head without its hop-by-hop lines, and with `Connection: close`: one connection, one destination."""
    first, *lines = head.rstrip(b"\r\n").split(b"\r\n")
    end_to_end = [line for line in lines if not line.lower().startswith(_HOP)]
    return b"\r\n".join([first, *end_to_end, b"Connection: close", b"", b""])


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
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)


def host_of(reference: Reference) -> str:
    """Return HOST or HOST:PORT where the registry of an image answers."""
    return "registry-1.docker.io" if reference.registry == DOCKER_HUB else reference.registry


def split(text: str, default: int) -> tuple[str, int]:
    """Return host and port of HOST[:PORT], an IPv6 address in brackets; `ValueError`."""
    host, colon, port = text.rpartition(":")
    if not colon or port.endswith("]"):
        host, port = text, ""
    host = host.removeprefix("[").removesuffix("]")
    number = int(port) if port.isascii() and port.isdecimal() else 0 if port else default
    if not host or not 0 < number < 1 << 16:
        raise ValueError(f"not HOST:PORT: {text[:300]!a}")
    return host, number


def is_public(address: str) -> bool:
    """Tell whether an address is public: not loopback, a link, the site, or a metadata service."""
    ip = ipaddress.ip_address(address.partition("%")[0])
    if isinstance(ip, ipaddress.IPv6Address):
        inner = _embedded_ipv4(ip)
        if inner is None:
            return ip.is_global and ip in _UNICAST
        ip = inner
    return ip.is_global and not ip.is_multicast


def _embedded_ipv4(ip: ipaddress.IPv6Address) -> ipaddress.IPv4Address | None:
    if ip in _NAT64:
        return ipaddress.IPv4Address(int(ip) & 0xFFFFFFFF)
    return ip.ipv4_mapped or ip.sixtofour


def _may_be_reached(family: int, address: tuple[str | int | bytes, ...]) -> bool:
    """Tell whether a socket's address is public and not this node's own, which may be public as well."""
    if not is_public(str(address[0])):
        return False
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(address)  # sends nothing; the kernel takes an address of its own as the source, too
        except OSError:
            return True  # no way there
        return bool(probe.getsockname()[0] != address[0])


def _fits(pattern: str, host: str, port: int) -> bool:
    name, colon, own_port = pattern.rpartition(":")
    if not colon:
        name, own_port = pattern, ""
    if own_port and int(own_port) != port:
        return False
    return host.endswith(name[1:]) if name.startswith("*.") else host == name
