"""Kill a prolog at every call of seeding by overlay, and an epilog at every call of the teardown."""

from __future__ import annotations

import os
from collections.abc import Callable
from itertools import count
from typing import Any

import pytest

from tests.support.overlay_place import Node, Run, a_node, content
from tests.support.vanish import WHENS, vanishes
from warmstart.host import linux
from warmstart.seed.node_cache import Copy

pytestmark = pytest.mark.usefixtures("capable_host")

CALLS = ("clone", "map_ids", "attach", "mount", "make_private", "make_read_only", "bind", "unmount", "detach")
SEEDED = {"k/one": b"1", "k/two": b"2", "top": b"t"}


def among_calls(act: Callable[[], object]) -> Callable[[], None]:
    """Return `act` with a counted call before and after each mount call, as points to vanish at."""

    def counting(real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kw: Any) -> Any:  # noqa: ANN401
            os.stat("/")
            try:
                return real(*args, **kw)
            finally:
                os.stat("/")

        return call

    def acted() -> None:
        for name in CALLS:
            setattr(linux, name, counting(getattr(linux, name)))
        act()

    return acted


def left(node: Node, copy: Copy) -> list[str]:
    """Return the mounts other than the node's own of the bundle."""
    return [point for point in node.mounts() if point != f"layers/{copy.sha256}"]


def show(run: Run, copy: Copy) -> None:
    """Seed the run, with one file hidden so that there are whiteouts."""
    run.show(copy, hidden=["k/two"])


@WHENS
def test_a_prolog_killed_at_any_step(when: str) -> None:
    """The teardown removes all that it had mounted, and the bundle serves the next run."""
    with a_node() as node:
        copy = node.bundle(SEEDED)
        for call in count(1):
            run = node.run(f"{call}.aaaaaaaa")
            died = vanishes(among_calls(lambda run=run: show(run, copy)), call, when)  # type: ignore[misc]
            assert run.take_down() == []
            assert (left(node, copy), run.path.exists()) == ([], False)
            if not died:
                break
        assert call > 35
        run = node.run("1.bbbbbbbb")
        show(run, copy)
        assert content(run.cache) == {"k/one": b"1", "top": b"t"}


@WHENS
def test_an_epilog_killed_at_any_step(when: str) -> None:
    """The next one continues where it stopped, and leaves nothing."""
    with a_node() as node:
        copy = node.bundle(SEEDED)
        for call in count(1):
            run = node.run(f"{call}.aaaaaaaa")
            show(run, copy)
            died = vanishes(among_calls(run.take_down), call, when)
            if run.path.exists():
                run.take_down()
            assert (left(node, copy), run.path.exists()) == ([], False)
            if not died:
                break
        assert call > 30
