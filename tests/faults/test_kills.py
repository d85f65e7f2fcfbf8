"""Each act is killed while it changes things: readers see whole ones, and what is left goes when it is done again.

`make test` takes a few cases (tests/faults/acts.py), `pytest -m ''` all.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from tests.faults.acts import ONE, SHARE, WHOLE, Act, deaths
from tests.faults.hooks import HOOKS, OFTEN, HookAct, SweptNode
from tests.faults.images import a_shelf_eviction, a_show, a_take_down, an_import
from tests.faults.store import OPERATIONS, StoreAct, a_store


@WHOLE
@pytest.mark.parametrize("hook", HOOKS)
def test_a_hook_killed_before_every_change(swept: SweptNode, hook: str, whole: bool) -> None:
    wrong = deaths(HookAct(swept, hook), 1 if whole else SHARE if hook in OFTEN else ONE)
    assert not wrong, "\n".join(wrong)


@WHOLE
@pytest.mark.parametrize(("group", "operation"), OPERATIONS)
def test_an_operation_of_the_store_killed_before_every_change(group: str, operation: str, whole: bool) -> None:
    with a_store() as top:
        wrong = deaths(StoreAct(top, group, operation), 1 if whole else ONE)
    assert not wrong, "\n".join(wrong)


@WHOLE
@pytest.mark.parametrize(
    "an_act",
    [
        pytest.param(an_import, marks=pytest.mark.threat(6)),
        pytest.param(a_show, marks=pytest.mark.threat(13)),
        pytest.param(a_take_down, marks=pytest.mark.threat(13)),
        a_shelf_eviction,
    ],
)
def test_what_images_need_killed_before_every_change(
    an_act: Callable[[Path], AbstractContextManager[Act]], base: Path, capable_host: None, whole: bool
) -> None:
    with an_act(base) as act:
        wrong = deaths(act, 1 if whole else ONE)
    assert not wrong, "\n".join(wrong)
