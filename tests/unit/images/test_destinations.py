"""Where an import may go: every spelling of this node, its links and its site is out, but for what the policy names."""

from __future__ import annotations

import socket

import pytest

from warmstart.images.importers import egress
from warmstart.images.importers.egress import DestinationRefused, Destinations, Reach, is_public, split
from warmstart.images.reference import parse


@pytest.mark.parametrize(
    "address",
    [
        *("127.0.0.1", "127.8.8.8", "::1", "::ffff:127.0.0.1", "0.0.0.0", "::"),
        *("169.254.169.254", "::ffff:169.254.169.254", "fe80::1%eth0", "fd00:ec2::254"),
        *("10.1.2.3", "172.16.0.1", "192.168.1.1", "100.64.0.1", "fd12::1", "224.0.0.1", "ff02::1"),
        *("64:ff9b::a01:203", "64:ff9b::7f00:1", "2002:7f00:1::1", "2002:a9fe:a9fe::1", "::ffff:10.1.2.3"),
        *("::10.1.2.3", "fec0::1", "2001:0:1::1", "2001:db8::1", "4000::1"),
    ],
)
def test_not_public(address: str) -> None:
    """No registry may send us there."""
    assert not is_public(address)


@pytest.mark.parametrize("address", ["1.1.1.1", "2606:4700::1111", "::ffff:1.1.1.1", "64:ff9b::101:101"])
def test_public(address: str) -> None:
    """Where registries keep what they have."""
    assert is_public(address)


@pytest.mark.parametrize(
    ("host", "port", "named"),
    [
        ("reg.io", 5000, True),
        ("REG.io", 5000, True),
        ("reg.io", 5001, False),
        ("evil-reg.io", 5000, False),
        ("minio.site", 9000, True),
        ("minio.site", 9001, True),
        ("a.b.blobs.site", 80, True),
        ("blobs.site", 80, False),
        ("xblobs.site", 80, False),
        ("one.site", 443, True),
        ("one.site", 80, False),
    ],
)
def test_what_the_policy_names(host: str, port: int, named: bool) -> None:
    """Whole names, with the port if one is given; a star stands for whole labels."""
    reach = Reach(("minio.site", "*.blobs.site", "one.site:443"))
    assert Destinations.of(parse("reg.io:5000/a:1"), reach).is_named(host, port) is named


def test_docker_hub_is_asked_where_it_answers() -> None:
    """`docker.io` is a name of images, not of a host."""
    hub = Destinations.of(parse("ubuntu"), Reach())
    assert hub.is_named("registry-1.docker.io", 443)
    assert not hub.is_named("docker.io", 443)


def test_the_address_decides_and_not_the_name() -> None:
    """A name that means loopback is refused before anything is connected; one that the policy names is connected to."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        server.settimeout(0.0)
        nowhere = Destinations("reg.io:5000", Reach())
        with pytest.raises(DestinationRefused, match="where no registry may send us"):
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
    assert Destinations("reg.io:5000").is_named("reg.io.", 5000)


def test_this_node_is_refused_at_a_public_address_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nodes may have one, and behind it what only they themselves should reach."""
    monkeypatch.setattr(egress, "is_public", lambda _: True)
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        server.settimeout(0.0)
        with pytest.raises(DestinationRefused, match="where no registry may send us"):
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
