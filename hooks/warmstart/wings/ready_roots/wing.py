"""The declaration of the wing."""

from __future__ import annotations

from warmstart.wing import Wing

WING = Wing(
    about="containers that start at once from the tree into which their node has unpacked their image",
    needs="paths.shelf",
    variables=("WARMSTART_ROOTFS",),
)
