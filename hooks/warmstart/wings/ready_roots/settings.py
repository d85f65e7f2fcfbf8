"""Names in a run's directory, and the ways in which containers start. Hot path of jobs with images."""

from __future__ import annotations

# In a run's directory, the job's: what containers write, in a directory each, and a file from-WAY.* for each container.
NAME = "ready-root"  # of the step
OWN = "ready-roots"
SAID = "from-"
TREE, IMAGE, UNPACKED = WAYS = ("tree", "image", "unpacked")  # what the root of a container came from
IN_WORDS = {TREE: "from the node's tree", IMAGE: "from the image's file", UNPACKED: "unpacked for themselves"}
