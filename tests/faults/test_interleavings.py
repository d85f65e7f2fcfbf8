"""Pairs of store operations in every order with up to two switches, and with old views (tests/lib/interleave).

`make test` takes a hundredth of the schedules, `make test-all` all of them. A test that puts an old mistake back must
fail: otherwise the schedules would not find it.
"""

from __future__ import annotations

import inspect
import os
import random
import sys
import tempfile
import textwrap
import time
from collections.abc import Callable, Iterator
from itertools import combinations_with_replacement
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

import pytest

from tests.lib.pairs import Explorer, in_process
from tests.lib.reports import write_fragment
from tests.lib.store_pairs import GROUPS
from warmstart.images.store import eviction, published
from warmstart.store import atomic, index, maintenance, parts

SHARE = 100


@pytest.fixture
def explorer() -> Iterator[Callable[[str], Explorer]]:
    """Return what makes the explorer of a group, in memory."""
    with tempfile.TemporaryDirectory(dir="/dev/shm") as top, in_process():
        yield lambda name: Explorer(Path(top), GROUPS[name])


def pairs(name: str) -> list[tuple[str, str]]:
    """Return all pairs of a group, each operation with itself, too."""
    return list(combinations_with_replacement(GROUPS[name].operations, 2))


@pytest.mark.parametrize("name", GROUPS)
def test_a_share_of_the_orders(explorer: Callable[[str], Explorer], name: str) -> None:
    """A hundredth, by SWEEP_SEED."""
    dice = random.Random(os.environ.get("SWEEP_SEED", "1"))
    explored = explorer(name)
    some = dice.sample(pairs(name), -(-len(pairs(name)) // 20))
    with explored.stage.played():
        for pair in some:
            failures = explored.explore(pair, lambda _: dice.random() < 20 / SHARE)
            assert not failures, failures[0]


@pytest.mark.sweep
@pytest.mark.parametrize("name", GROUPS)
def test_all_orders(explorer: Callable[[str], Explorer], name: str) -> None:
    """The figures go to build/reliability."""
    explored, began = explorer(name), time.monotonic()
    failed = []
    with explored.stage.played():
        for pair in pairs(name):
            failed += explored.explore(pair)[:1]
    took, of = round(time.monotonic() - began), f"{len(GROUPS[name].operations)} operations, {len(pairs(name))} pairs"
    line = f"- *{name}*: {of}, {explored.schedules:,} orders in {took} s, {len(failed)} wrong.\n"
    write_fragment(f"orders-{list(GROUPS).index(name)}.md", line)
    assert not failed, "\n".join(map(str, failed))


class Mistake(NamedTuple):
    """A mistake of two live processes: what the code is by now, and what it was, or would be without that care."""

    module: ModuleType
    function: str
    now: str
    before: str
    group: str
    pair: tuple[str, str]


MISTAKES = {
    "two last nodes at once leave the directory (c49ef39)": Mistake(
        *(parts, "finish"),
        "_standing(names, nodelist) if node + _DONE in names else Standing(nodelist, [], 0, 0.0)",
        "_standing(names, nodelist)",
        *("parts", ("nothing from the first node", "nothing from the second node")),
    ),
    "an index brings a removed bundle back": Mistake(
        *(index, "_written"),
        "if index == there:",
        "if {listed.bundle for listed in there.bundles} >= _manifests(dir_fd):",
        *("bundles", ("publish", "evict")),
    ),
    "work is lost because what it replaces is just gone": Mistake(
        *(index, "with_new_id"),
        "if not published.is_gone(listed)",
        "",
        *("bundles", ("supersede", "scrub")),
    ),
    "an eviction takes the metadata of an image that was imported again": Mistake(
        *(published, "remove_metadata"),
        "> changed(moved, images)",
        "< 0",
        *("images", ("import again what is evicted", "evict")),
    ),
    "what is put away takes the metadata of an image that was imported again": Mistake(
        *(published, "remove_metadata"),
        "> changed(moved, images)",
        "< 0",
        *("images", ("import again what is evicted", "put away")),
    ),
    "an index is written over a newer one": Mistake(
        *(index, "_written"),
        "if index == there:",
        "return there\n        if index == there:",
        *("bundles", ("publish", "publish the same entry")),
    ),
    "an old listing hides a bundle": Mistake(
        *(index, "_covering"),
        "os.stat(bundle + MANIFEST, dir_fd=dir_fd, follow_symlinks=False)",
        "continue",
        *("bundles", ("supersede", "supersede the same entry")),
    ),
    "replaced bundles go while somebody reads them": Mistake(
        *(maintenance, "_is_past_grace"),
        "now - GRACE_SECONDS",
        "now + DAY",
        *("bundles", ("maintenance", "look up and fetch")),
    ),
    "a damaged image is put away when it was replaced": Mistake(
        *(published, "_is_another"),
        "os.fstat(fd).st_ino != inode",
        "False",
        *("images", ("put away", "put away and import again")),
    ),
    "an image is evicted that somebody has just used": Mistake(
        *(eviction, "_remove_hidden"),
        "if is_back:",
        "if False:",
        *("images", ("evict", "look up and use")),
    ),
    "the second of two images takes the first one's place": Mistake(
        *(atomic, "publish"),
        "os.link(temp, name, src_dir_fd=dir_fd, dst_dir_fd=dir_fd, follow_symlinks=False)",
        "os.rename(temp, name, src_dir_fd=dir_fd, dst_dir_fd=dir_fd)",
        *("images", ("elect and import", "import with other bytes")),
    ),
    "a second proposal takes the first one's place": Mistake(
        *(atomic, "publish"),
        "os.link(temp, name, src_dir_fd=dir_fd, dst_dir_fd=dir_fd, follow_symlinks=False)",
        "os.rename(temp, name, src_dir_fd=dir_fd, dst_dir_fd=dir_fd)",
        *("agreements", ("propose", "propose in a second prolog")),
    ),
    "a merge removes what came in late": Mistake(
        *(parts, "remove"),
        "filter(is_bundle_id, merged)",
        "_bundles(_names(dir_fd))",
        *("parts", ("hand in from a late node", "merge parts")),
    ),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_found_when_it_is_put_back(
    explorer: Callable[[str], Explorer], name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It fails, and the shortest schedule is printed."""
    module, function, now, before, group, pair = MISTAKES[name]
    explored = explorer(group)
    with explored.stage.played():
        learnt = explored.learn(pair)
    right = getattr(module, function)
    source = textwrap.dedent(inspect.getsource(right))
    assert now in source
    made: dict[str, object] = {}
    exec(compile(source.replace(now, before), str(module.__file__), "exec"), vars(module), made)
    for user in [one for one in sys.modules.values() if getattr(one, function, None) is right]:
        monkeypatch.setattr(user, function, made[function])
    with explored.stage.played():
        failures = explored.explore(pair, learnt=learnt, enough=1)
    assert failures
    print(failures[0])  # noqa: T201 - for who asks with -s
