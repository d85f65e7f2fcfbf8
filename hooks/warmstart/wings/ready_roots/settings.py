"""Names in a run's directory, and the ways in which containers start. Hot path of jobs with images."""

from __future__ import annotations

# In a run's directory, the job's: what containers write, in a directory each, and a file from-WAY.* for each container.
OWN = "ready-roots"
SAID = "from-"
TREE, IMAGE, UNPACKED = WAYS = ("tree", "image", "unpacked")  # what the root of a container came from
