"""The declaration of the wing."""

from __future__ import annotations

from warmstart.wing import Wing

_WITHOUT = "needs slurmctld.spec_directory: only the controller knows this attribute"
WING = Wing(
    about="what nodes cannot know of a job, such as its name: hooks on the controller write it down",
    informs={"job_name": _WITHOUT},
)
