"""Each call site of each act fails, from its first call on, with every error that its man page names.

The error is of the right class, ends in time, and drains only for the node's own disks. The job has all of its
preparation or none, what belongs to others is as it was, and what is left goes when the act is done again.

`make test` takes a few cases (tests/faults/acts.py), `pytest -m ''` all.
"""

from __future__ import annotations

import pytest

from tests.faults.acts import ONE, SHARE, failures
from tests.faults.hooks import HOOKS, OFTEN, HookAct, SweptNode

WHOLE = pytest.mark.parametrize("whole", [False, pytest.param(True, marks=pytest.mark.sweep)])


@WHOLE
@pytest.mark.parametrize("hook", HOOKS)
def test_an_error_at_every_call_of_a_hook(swept: SweptNode, hook: str, whole: bool) -> None:
    wrong = failures(HookAct(swept, hook), 1 if whole else SHARE if hook in OFTEN else ONE)
    assert not wrong, "\n".join(wrong)
