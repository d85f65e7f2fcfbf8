"""What root makes of an image that a step wants, and what that means for the step. Runs as the job's user."""

from __future__ import annotations

import os
from collections.abc import Callable

from warmstart.errors import UserError
from warmstart.images.reference import Reference
from warmstart.images.single_flight import STORE_FAILED
from warmstart.images.user import own_images
from warmstart.images.user.own_images import Made
from warmstart.job import STEP_NODES
from warmstart.paths import Installation
from warmstart.policy.keys import Policy
from warmstart.steps.image import NOT_SHOWN
from warmstart.wings.step_images import asking
from warmstart.wings.step_images.place import KEY, socket_of


def make(installation: Installation, reference: Reference, policy: Policy, find: Callable[[], str]) -> Made | None:
    """Return the image that root obtains for the job, and its caches; None if it is to be imported as the user.

    Raises `ImageDeclined`. `find`: as `asking.obtain`.
    """
    imports = KEY in policy.own
    nodes = os.environ.get(STEP_NODES, "")
    answer = asking.obtain(socket_of(installation), reference, policy.images, find, waits_on=not imports, nodes=nodes)
    if answer.path:
        return Made(answer.path, None if answer.caches == asking.NO_CACHES else answer.caches, answer.text)
    is_over = answer.said in (asking.BUSY, asking.BROKEN) or answer.code == asking.EXPIRED
    is_optional = answer.kind != UserError.kind and policy.on_error.image == "run-without"
    # Without credentials a registry tells the user what it told root.
    is_shown_to_user = answer.code in NOT_SHOWN and bool(own_images.credentials())
    if answer.said == asking.ALONE or answer.code == STORE_FAILED or is_shown_to_user:
        return None
    if is_optional or (is_over and imports):
        return None
    why = answer.text or f"image {reference.canonical()} is missing: too many steps of this node ask for images"
    raise asking.ImageDeclined(text=f"{why}\nwarmstart: {answer.hint}" if answer.hint else why)
