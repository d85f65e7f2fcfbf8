"""The declaration of the wing."""

from __future__ import annotations

from warmstart.wing import Wing

WING = Wing(about="what enforcing the policy would bring to jobs that are only observed")
