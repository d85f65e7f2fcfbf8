"""The declaration of the wing."""

from __future__ import annotations

from warmstart.wing import Wing

WING = Wing(about="jobs whose image is not there in time go back into Slurm's queue")
