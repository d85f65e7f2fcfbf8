"""Each call site of each act fails, from its first call on, with every error that its man page names.

The error is of the right class, ends in time, and drains only for the node's own disks. The job has all of its
preparation or none, what belongs to others is as it was, and what is left goes when the act is done again.

`make test` takes a few cases (tests/faults/acts.py), `pytest -m ''` all.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from tests.faults.acts import ONE, SHARE, WHOLE, Act, failures
from tests.faults.hooks import HOOKS, OFTEN, HookAct, SweptNode
from tests.faults.images import a_shelf_eviction, a_show, a_take_down
from tests.faults.store import OPERATIONS, StoreAct, a_store


@WHOLE
@pytest.mark.parametrize("hook", HOOKS)
def test_an_error_at_every_call_of_a_hook(swept: SweptNode, hook: str, whole: bool) -> None:
    wrong = failures(HookAct(swept, hook), 1 if whole else SHARE if hook in OFTEN else ONE)
    assert not wrong, "\n".join(wrong)


@WHOLE
@pytest.mark.parametrize(("group", "operation"), OPERATIONS)
def test_an_error_at_every_call_of_an_operation_of_the_store(group: str, operation: str, whole: bool) -> None:
    with a_store() as top:
        wrong = failures(StoreAct(top, group, operation), 1 if whole else ONE)
    assert not wrong, "\n".join(wrong)


@WHOLE
@pytest.mark.parametrize("an_act", [a_show, a_take_down, a_shelf_eviction])
def test_an_error_at_every_call_of_what_images_need(
    an_act: Callable[[Path], AbstractContextManager[Act]], base: Path, capable_host: None, whole: bool
) -> None:
    with an_act(base) as act:
        wrong = failures(act, 1 if whole else ONE)
    assert not wrong, "\n".join(wrong)
