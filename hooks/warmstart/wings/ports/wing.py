"""The declaration of the wing."""

from __future__ import annotations

from warmstart.wing import Wing

WING = Wing(
    about="`MASTER_ADDR` and reserved ports, the same on all nodes of a job",
    step="early",  # the other nodes wait for the head node's answer
    variables=("MASTER_ADDR", "MASTER_PORT"),
    words={"ports": "ports are not offered on this cluster"},
)
