"""The network access of an import's programs: an HTTP proxy that checks every address before it connects.

The programs run in a network namespace that has only the proxy's socket, and the registry's address if that is on this
node's loopback. Outside, a process with the import account accepts their connections and connects for them. It starts
and ends with one program.

The proxy accepts CONNECT and absolute-form requests (RFC 9110, 9.3.6; RFC 9112, 3.2.2) and forwards bytes unchanged.
It allows the image's registry, the hosts of the policy, and public addresses. A registry can redirect anywhere, so the
proxy checks the address and not the name, which may resolve differently a moment later.
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

DEFAULT_PORTS = (80, 443)  # of HTTP and HTTPS: other services of a registry's host are not its own
PROXY = ("127.0.0.1", 3128)
LONGEST_REFUSAL = 4096
LONGEST_HEAD = 1 << 16
CHUNK = 1 << 16
CONNECT_S = 20.0
HEAD_S = 30.0
MOST_CONNECTIONS = 64
SILENT = "images.proxy does not answer"  # what Go prints of the answer to a request that can't be passed on
_HOP = (b"proxy-", b"connection:", b"keep-alive:")
# The next server has to parse a request as we do. So accept only characters of a URI (RFC 3986), no fragment, DNS names
# or addresses as hosts, and one kind of line end.
_TARGET = re.compile(r"[A-Za-z0-9._~:/?\[\]@!$&'()*+,;=%-]+")
_HOST = re.compile(r"[A-Za-z0-9._-]{1,255}|[0-9A-Fa-f:.]{2,45}")
_STRAY = re.compile(rb"\0|\r(?!\n)|(?<!\r)\n")
_GRANTED = re.compile(rb"HTTP/1\.[01] 2[0-9]{2}[ \r]")
# IPv6 addresses that embed an IPv4 address: NAT64 (RFC 6052); `ipaddress` knows 6to4 (RFC 3056).
_NAT64 = ipaddress.ip_network("64:ff9b::/96")
# The last label of a host that URL parsers take for an IPv4 address (url.spec.whatwg.org, "ends in a number").
_NUMBER = re.compile(r"[0-9]+|0[xX][0-9a-fA-F]*")
_UNICAST = ipaddress.ip_network("2000::/3")  # IANA assigns global IPv6 addresses only from here


class EgressUnusable(ResourceError):
    """A network namespace for an import cannot be created on this node."""

    code = "import-no-egress"
    template = "no network namespace for an import on this node: {problem}"
    hint = "check that slurmd runs with CAP_SYS_ADMIN, then user.max_net_namespaces, fs.file-max and free memory"


class NotUnderstood(Exception):
    """A message is not a request or answer that the proxy accepts."""


class DestinationRefused(Exception):
    """An import may not connect to a destination; the text names it."""


class Reach(NamedTuple):
    """What the policy allows imports to reach: `hosts` are HOST, HOST:PORT or *.DOMAIN, `proxy` is HOST:PORT.

    A host without a port is meant with `DEFAULT_PORTS`.
    """

    hosts: tuple[str, ...] = ()
    proxy: str | None = None


class Destinations(NamedTuple):
    """What one import may reach: its image's registry (HOST or HOST:PORT), and what the policy allows."""

    registry: str
    reach: Reach = Reach()

    @classmethod
    def of(cls, reference: Reference, reach: Reach) -> Destinations:
        """Return what an import of an image may reach; `reach` is the policy's."""
        return cls(host_of(reference), reach)

    def connect(self, host: str, port: int, seconds: float) -> socket.socket:
        """Connect to a host and port with a timeout of `seconds`. Raises `DestinationRefused` or `OSError`."""
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
            raise DestinationRefused(f"{host}:{port} resolves to {refused}, which imports may not reach")
        raise problem

    def check(self, host: str, port: int) -> None:
        """Raise `DestinationRefused` for what `connect` would refuse, if this node can resolve the name.

        For hosts that an upstream proxy connects to. It may know names that this node does not, so these pass.
        """
        if self.is_trusted(host, port):
            return
        name = host.rstrip(".")
        try:
            addresses = socket.getaddrinfo(name, port, type=socket.SOCK_STREAM)
        except OSError:
            if _NUMBER.fullmatch(name.rpartition(".")[2]):
                raise DestinationRefused(f"{host}:{port} is neither a name nor a valid address") from None
            return
        if refused := [item[4][0] for item in addresses if not _may_be_reached(item[0], item[4])]:
            raise DestinationRefused(f"{host}:{port} resolves to {refused[0]}, which imports may not reach")

    def is_trusted(self, host: str, port: int) -> bool:
        """Return whether this is the registry or one of the policy's hosts, which may have any address."""
        name = host.lower().rstrip(".")
        return any(_fits(pattern, name, port) for pattern in (self.registry, *self.reach.hosts))


class Egress(NamedTuple):
    """A network namespace, the proxy variables for programs in it, and a pipe that reports refusals."""

    namespace: int  # descriptor
    environment: dict[str, str]
    refusals: int  # descriptor

    def refused(self) -> str:
        """Return a sentence on the first refused destination, "" if none was refused."""
        try:
            return os.read(self.refusals, LONGEST_REFUSAL).decode("ascii", "replace").partition("\n")[0]
        except BlockingIOError:
            return ""


class ProxyRequest(NamedTuple):
    """A request to the proxy; `head` is forwarded to the host, b"" for a CONNECT (`tunnel`)."""

    host: str
    port: int
    tunnel: bool
    head: bytes


@contextmanager
def opened(identity: Identity, destinations: Destinations) -> Iterator[Egress]:
    """Provide a network namespace with access to these destinations for the duration of a `with`. Needs root.

    The process that connects runs as `identity`. Raises `EgressUnusable`.
    """
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
            try:  # no exception may reach the hook's own code
                _give_up_root(identity, {report, *(one.fileno() for one in made.sockets)}, parent)
                _serve(made, relayed, destinations, report)
            finally:
                os._exit(0)
        stack.callback(_end, pid)
        for listening in made.sockets:  # so that a dead proxy refuses connections, and no program waits for it
            listening.close()
        yield Egress(made.fd, _environment(), refusals)


def _end(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)


def _serve(made: Enclosure, relayed: Sequence[tuple[str, int]], destinations: Destinations, report: int) -> None:
    """Serve until the hook kills this process, which is outside the namespace."""

    def report_refusal(sentence: str) -> None:
        os.write(report, f"{ascii(sentence[:500])[1:-1]}\n".encode())

    serve(made.sockets[0], list(zip(made.sockets[1:], relayed, strict=True)), destinations, report_refusal)


def _give_up_root(identity: Identity, keep: set[int], parent: int) -> None:
    detach()
    close_others({0, 1, 2, *keep})
    surrender(identity)
    if os.getppid() != parent:
        os._exit(0)  # the parent died before `surrender` had set the death signal


def _relayed(registry: str) -> list[tuple[str, int]]:
    """Return the registry's address if it is on loopback, where Go uses no proxy; [] if it is elsewhere."""
    try:
        host, port = split(registry, 443)
        address = "127.0.0.1" if host == "localhost" else host
        is_here = ipaddress.ip_address(address).is_loopback
    except ValueError:
        return []
    return [(address, port)] if is_here and (address, port) != PROXY else []


def _environment() -> dict[str, str]:
    proxy = f"http://{PROXY[0]}:{PROXY[1]}"
    # Setting no_proxy keeps /etc/enroot/enroot.conf from naming hosts that bypass the proxy.
    return {"http_proxy": proxy, "https_proxy": proxy, "all_proxy": proxy, "no_proxy": "none.invalid"}


def serve(
    proxy: socket.socket,
    relays: Sequence[tuple[socket.socket, tuple[str, int]]],
    destinations: Destinations,
    report_refusal: Callable[[str], None],
) -> None:
    """Serve requests to `proxy` for ever; forward connections to the sockets of `relays` to their host and port.

    Calls `report_refusal` with a sentence for each refused destination.
    """
    free = threading.BoundedSemaphore(MOST_CONNECTIONS)

    def handle(client: socket.socket, destination: tuple[str, int] | None) -> None:
        try:
            with client:
                _relay(client, *destination) if destination else _answer(client, destinations, report_refusal)
        except (OSError, NotUnderstood):
            return  # one side hung up, or upstream is not a proxy; closing ends the other side
        finally:
            free.release()

    with selectors.DefaultSelector() as selector:
        selector.register(proxy, selectors.EVENT_READ, None)
        for listening, destination in relays:
            selector.register(listening, selectors.EVENT_READ, destination)
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
    problem = ""
    try:
        head, rest = _read_head(client)
        request = parse(head)
        upstream = destinations.reach.proxy
        if upstream:
            destinations.check(request.host, request.port)
            problem = f"{SILENT}: {upstream}: "
            server = socket.create_connection(split(upstream, 80), CONNECT_S)
        else:
            server = destinations.connect(request.host, request.port, CONNECT_S)
    except (NotUnderstood, UnicodeError, ValueError):
        _refuse(client, "400 Bad Request")
    except DestinationRefused as error:
        report_refusal(str(error))
        _refuse(client, f"403 Forbidden: {error}")
    except OSError as error:
        _refuse(client, f"502 Bad Gateway: {problem}{error.strerror or 'no answer'}")
    else:
        with server:
            if upstream and request.tunnel:
                server.settimeout(HEAD_S)
                server.sendall(head)
                answer, early = _read_head(server)
                client.sendall(answer + early)
                if not _GRANTED.match(answer):
                    return  # without a tunnel, what follows would be a request that was not checked
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
    """Parse the head of a request to the proxy. Raises `NotUnderstood` or `ValueError`."""
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
    """Return a head without hop-by-hop fields and with `Connection: close`: one request for each connection."""
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
    # Go and curl print the reason phrase.
    client.sendall(f"HTTP/1.1 {status}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n".encode("ascii", "replace"))


def _pump(one: socket.socket, other: socket.socket) -> None:
    """Forward bytes in both directions until both sides have closed; either side may close first."""
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
    """Return HOST or HOST:PORT of the server of an image's registry."""
    return "registry-1.docker.io" if reference.registry == DOCKER_HUB else reference.registry


def split(text: str, default: int) -> tuple[str, int]:
    """Return host and port of HOST[:PORT], where an IPv6 address is in brackets. Raises `ValueError`."""
    host, colon, port = text.rpartition(":")
    if not colon or port.endswith("]"):
        host, port = text, ""
    host = host.removeprefix("[").removesuffix("]")
    number = int(port) if port.isascii() and port.isdecimal() else 0 if port else default
    if not host or not 0 < number < 1 << 16:
        raise ValueError(f"not HOST:PORT: {text[:300]!a}")
    return host, number


def is_public(address: str) -> bool:
    """Return whether an address is public: not loopback, link-local, private, or of a metadata service."""
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
    """Return whether a socket address is public and not one of this node's own, which may be public, too."""
    if not is_public(str(address[0])):
        return False
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        try:
            # Sends nothing. For an address of this node the kernel chooses the same one as the source.
            probe.connect(address)
        except OSError:
            return True  # unreachable
        return bool(probe.getsockname()[0] != address[0])


def _fits(pattern: str, host: str, port: int) -> bool:
    """Return whether HOST, HOST:PORT or *.DOMAIN names this host and port; without a port, a default one."""
    name, colon, own_port = pattern.rpartition(":")
    if not colon:
        name = pattern
    if port not in ((int(own_port),) if colon else DEFAULT_PORTS):
        return False
    return host.endswith(name[1:]) if name.startswith("*.") else host == name
