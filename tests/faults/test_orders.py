"""Pairs of the store's operations in every order with up to two switches, and with old views (tests/lib/interleave).

`make test` takes a hundredth of the orders, by SWEEP_SEED; `pytest -m ''` all of them.
"""

from __future__ import annotations

import os
import random
import tempfile
from collections.abc import Iterator
from itertools import combinations_with_replacement
from pathlib import Path

import pytest

from tests.lib.pairs import Explorer, in_process
from tests.lib.store_pairs import GROUPS

SHARE = 100


@pytest.fixture(params=list(GROUPS))
def group(request: pytest.FixtureRequest) -> str:
    """Return the name of a group of operations."""
    return str(request.param)


@pytest.fixture
def explorer(group: str) -> Iterator[Explorer]:
    """Return the explorer of a group, in memory."""
    with tempfile.TemporaryDirectory(dir="/dev/shm") as top, in_process():
        explored = Explorer(Path(top), GROUPS[group])
        with explored.stage.played():
            yield explored


@pytest.fixture
def pairs(group: str) -> list[tuple[str, str]]:
    """Return all pairs of the group, each operation with itself, too."""
    return list(combinations_with_replacement(GROUPS[group].operations, 2))


def test_a_share_of_the_orders(explorer: Explorer, pairs: list[tuple[str, str]]) -> None:
    dice = random.Random(os.environ.get("SWEEP_SEED", "1"))
    for pair in dice.sample(pairs, -(-len(pairs) // 20)):
        failures = explorer.explore(pair, lambda _: dice.random() < 20 / SHARE)
        assert not failures, failures[0]


@pytest.mark.sweep
def test_all_orders(explorer: Explorer, pairs: list[tuple[str, str]]) -> None:
    failed = [failure for pair in pairs for failure in explorer.explore(pair)[:1]]
    assert not failed, "\n".join(map(str, failed))
