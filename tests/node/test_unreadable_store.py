"""Files of the store that cannot be read, with real errors of a file system: whom they stop, and whom not."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Literal

import pytest

from tests.lib import mounts
from tests.lib.command_line import run
from tests.lib.node import Node, one
from warmstart.store.layout import StoreFailed

pytestmark = pytest.mark.usefixtures("capable_host", "busy")

OWN, SHARED = "user-1-a", "account-x"
FIRST, SECOND = "00000001", "00000002"
At = Literal["read", "look"]


class Site(Node):
    """A site, some of whose store cannot be read until the test ends."""

    def __init__(self, base: Path, broken: ExitStack) -> None:
        super().__init__(base)
        self._broken = broken

    def breaks(self, name: str, scope: str = OWN, at: At = "read") -> None:
        self._broken.enter_context(mounts.broken(self.base, self.directory(scope) / "listing", name, at=at))

    def mends(self) -> None:
        self._broken.close()


@pytest.fixture
def site(base: Path) -> Iterator[Site]:
    with ExitStack() as broken:
        yield Site(base, broken)


@pytest.mark.parametrize("at", ["read", "look"])
def test_readers_take_the_listing_before_and_no_writer_forgets_a_row(site: Site, at: At) -> None:
    first = site.publish(one("a"))
    second = site.publish(one("b"))
    site.breaks(SECOND, at=at)
    assert site.seen() == {"a": first}
    with pytest.raises(StoreFailed, match="Input/output error"):
        site.publish(one("c"))
    assert site.command("cache", "rm", first).exit_code == 1
    other = site.publish(one("d"), scope=SHARED)
    assert site.seen(SHARED) == {"d": other}
    site.mends()
    assert site.seen() == {"a": first, "b": second}
    third = site.publish(one("c"))
    assert site.seen() == {"a": first, "b": second, "c": third}


@pytest.mark.parametrize("command", ["list", "compact"])
def test_a_command_goes_on_and_names_each(site: Site, command: str) -> None:
    for scope in ("account-a", SHARED):
        site.publish(one("a"), scope=scope)
        site.breaks(FIRST, scope=scope)
    for entry in "bc":
        site.publish(one(entry))
    done = run(site.installation, "cache", command)
    assert done.exit_code in (1, 2)
    told = [line for line in done.stderr.splitlines() if "Input/output error" in line]
    assert {scope for scope in ("account-a", SHARED, OWN) for line in told if scope in line} == {"account-a", SHARED}
    if command == "compact":
        assert len({*site.seen().values()}) == 1
