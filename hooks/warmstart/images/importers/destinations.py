"""Where an import may connect to: its registry, the site's hosts that the policy names, public addresses.

A registry can send whoever asks it anywhere (threats, row 11): a redirect, a token service. What is judged is the
address that is connected to and not the name, which may mean another one a moment later.
"""

from __future__ import annotations

import ipaddress
import re
import socket
from typing import NamedTuple

from warmstart.images.reference import DOCKER_HUB, Reference

# Prefixes that carry an IPv4 address to whoever translates: RFC 6052 (NAT64), RFC 3056 (6to4).
_NAT64 = ipaddress.ip_network("64:ff9b::/96")
# The last label of what is an IPv4 address, as browsers read it (url.spec.whatwg.org, "ends in a number").
_NUMBER = re.compile(r"[0-9]+|0[xX][0-9a-fA-F]*")
_UNICAST = ipaddress.ip_network("2000::/3")  # all that IANA gives out of IPv6


class Reach(NamedTuple):
    """The policy's part of it: `hosts` are HOST, HOST:PORT or *.DOMAIN, `proxy` is HOST:PORT or ""."""

    hosts: tuple[str, ...] = ()
    proxy: str = ""


class DestinationRefused(Exception):
    """An import was sent where it may not go; says where, in words."""


class Destinations(NamedTuple):
    """What one import may reach; `registry`, HOST or HOST:PORT, is its image's."""

    registry: str
    reach: Reach = Reach()

    @classmethod
    def of(cls, reference: Reference, reach: Reach) -> Destinations:
        """Return what an import of an image may reach."""
        return cls(host_of(reference), reach)

    def connect(self, host: str, port: int, seconds: float) -> socket.socket:
        """Return a connection to a host and port; `DestinationRefused`, `OSError` where nobody answers."""
        trusted = self.is_named(host, port)
        problem: OSError = OSError("it has no address")
        refused = ""
        for family, kind, protocol, _, address in socket.getaddrinfo(host.rstrip("."), port, type=socket.SOCK_STREAM):
            if not trusted and not _is_elsewhere(family, address):
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
        """Raise `DestinationRefused` for what `connect` would refuse, if its name means anything here.

        For a host that a proxy connects to, which may know names that this node does not, but no other addresses.
        """
        if self.is_named(host, port):
            return
        name = host.rstrip(".")
        try:
            found = socket.getaddrinfo(name, port, type=socket.SOCK_STREAM)
        except OSError:
            if _NUMBER.fullmatch(name.rpartition(".")[2]):
                raise DestinationRefused(f"{host}:{port} is no name, and no address that we know") from None
            return
        if refused := [item[4][0] for item in found if not _is_elsewhere(item[0], item[4])]:
            raise DestinationRefused(f"{host}:{port} is at {refused[0]}, where no registry may send us")

    def is_named(self, host: str, port: int) -> bool:
        """Tell whether it is the registry, or one of the policy's hosts: these may have any address."""
        name = host.lower().rstrip(".")
        return any(_fits(pattern, name, port) for pattern in (self.registry, *self.reach.hosts))


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
    """Tell whether a registry may send us there: not loopback, a link, the site, or a metadata service."""
    ip = ipaddress.ip_address(address.partition("%")[0])
    if isinstance(ip, ipaddress.IPv6Address):
        inner = _embedded_ipv4(ip)
        if inner is None:
            return ip.is_global and ip in _UNICAST
        ip = inner
    return ip.is_global and not ip.is_multicast


def _is_elsewhere(family: int, address: tuple[str | int | bytes, ...]) -> bool:
    """Tell whether a socket's address is public and not this node's own, which may be public as well."""
    if not is_public(str(address[0])):
        return False
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(address)  # sends nothing; the kernel takes an address of its own as the source, too
        except OSError:
            return True  # no way there
        return bool(probe.getsockname()[0] != address[0])


def _embedded_ipv4(ip: ipaddress.IPv6Address) -> ipaddress.IPv4Address | None:
    if ip in _NAT64:
        return ipaddress.IPv4Address(int(ip) & 0xFFFFFFFF)
    return ip.ipv4_mapped or ip.sixtofour


def _fits(pattern: str, host: str, port: int) -> bool:
    name, colon, own_port = pattern.rpartition(":")
    if not colon:
        name, own_port = pattern, ""
    if own_port and int(own_port) != port:
        return False
    return host.endswith(name[1:]) if name.startswith("*.") else host == name
