"""Each act is killed before every change: readers see whole things, and what is left goes when it is done again.

`make test` takes a few cases (tests/faults/acts.py), `pytest -m ''` all.
"""

from __future__ import annotations

import pytest

from tests.faults.acts import ONE, SHARE, deaths
from tests.faults.hooks import HOOKS, OFTEN, HookAct, SweptNode

WHOLE = pytest.mark.parametrize("whole", [False, pytest.param(True, marks=pytest.mark.sweep)])


@WHOLE
@pytest.mark.parametrize("hook", HOOKS)
def test_a_hook_killed_before_every_change(swept: SweptNode, hook: str, whole: bool) -> None:
    wrong = deaths(HookAct(swept, hook), 1 if whole else SHARE if hook in OFTEN else ONE)
    assert not wrong, "\n".join(wrong)
