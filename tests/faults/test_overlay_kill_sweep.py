"""Kill a prolog at every call of seeding by overlay, and an epilog at every call of the teardown."""

from __future__ import annotations

from itertools import count

import pytest

from tests.lib.overlay_place import Node, Run, a_node, content
from tests.lib.vanish import WHENS, vanishes
from warmstart.seed.node_cache import Copy

pytestmark = [pytest.mark.threat(13), pytest.mark.usefixtures("capable_host")]

SEEDED = {"k/one": b"1", "k/two": b"2", "top": b"t"}


def left(node: Node, copy: Copy) -> list[str]:
    """Return the mounts other than the node's own of the bundle."""
    return [point for point in node.mounts() if point != f"layers/{copy.offer.sha256}"]


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
            died = vanishes(lambda run=run: show(run, copy), call, when)  # type: ignore[misc]
            assert run.take_down() == []
            assert (left(node, copy), run.path.exists()) == ([], False)
            if not died:
                break
        assert call > 20
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
            died = vanishes(run.take_down, call, when)
            if run.path.exists():
                run.take_down()
            assert (left(node, copy), run.path.exists()) == ([], False)
            if not died:
                break
        assert call > 20
