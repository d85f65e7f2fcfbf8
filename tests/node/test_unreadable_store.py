"""Files of the store that cannot be read, with real errors of a file system: whom they stop, and who heals them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Literal

import pytest

from tests.lib import mounts
from tests.lib.command_line import run
from tests.lib.node import Node, one
from warmstart.host.deadline import after
from warmstart.store.layout import Namespace, StoreFailed

pytestmark = pytest.mark.usefixtures("capable_host", "busy")

OWN = "user-1-a"
SHARED = "account-x"
INDEX = "index.json"
At = Literal["read", "look"]
EACH = pytest.mark.parametrize("at", ["read", "look"])


class Site(Node):
    """A site, some of whose store cannot be read until the test ends."""

    def __init__(self, base: Path, broken: ExitStack) -> None:
        super().__init__(base)
        self._broken = broken

    def breaks(self, *names: str, scope: str = OWN, at: At = "read") -> None:
        self._broken.enter_context(mounts.broken(self.base, self.directory(scope), *names, at=at))


@pytest.fixture
def site(base: Path) -> Iterator[Site]:
    with ExitStack() as broken:
        yield Site(base, broken)


@EACH
def test_an_index_is_made_of_the_manifests(site: Site, at: At) -> None:
    site.publish(one("a"))
    site.publish(one("b"))
    before = site.seen()
    site.breaks(INDEX, at=at)
    assert site.seen() == before
    made = site.publish(one("c"))
    assert site.seen() == {**before, "c": made}


@EACH
def test_the_other_namespaces_of_the_scope_are_published(site: Site, at: At) -> None:
    mine = site.publish(one("a"))
    site.breaks(INDEX, f"{mine}.json", at=at)
    other = Namespace(str(site.store), OWN, "numba", "other")
    fd = site.packed(one("b"))
    with site.client() as client:
        assert client.publish(other, fd, site.draft(one("b")), after(20), quota=1 << 20).bundle
        (offer,) = client.offers([OWN], "numba", "other", after(20)).offers
    os.close(fd)
    assert offer.entries == ["b"]


def test_a_shared_scope_leaves_the_users_own(site: Site) -> None:
    site.publish(one("a"), scope=SHARED)
    mine = site.publish(one("b"))
    for scope in (SHARED, OWN):
        (path,) = site.directory(scope).glob("*Z-*.json")
        site.breaks(INDEX, path.name, scope=scope)
        if scope == SHARED:
            with site.client() as client:
                offers = client.offers([SHARED, OWN], "numba", "ns", after(20))
            assert [(offer.scope, offer.bundle) for offer in offers.offers] == [(OWN, mine)]
            ((what, why),) = offers.refused.items()
            assert what == f"{SHARED}/*"
            assert f"Input/output error: {path}" in why
    with pytest.raises(StoreFailed, match=str(site.directory())):
        site.seen(SHARED, OWN)


@pytest.mark.parametrize("command", ["reindex", "compact"])
def test_a_command_goes_on_and_names_each(site: Site, command: str) -> None:
    for scope in ("account-a", SHARED):
        broken = site.publish(one("a"), scope=scope)
        site.breaks(INDEX, f"{broken}.json", scope=scope)
    site.publish(one("b"))
    (site.directory() / INDEX).unlink()
    done = run(site.installation, "cache", command)
    assert done.exit_code == 1
    told = [line for line in done.stderr.splitlines() if "Input/output error" in line]
    assert {scope for scope in ("account-a", SHARED, OWN) for line in told if scope in line} == {"account-a", SHARED}
    assert (site.directory() / INDEX).exists()
