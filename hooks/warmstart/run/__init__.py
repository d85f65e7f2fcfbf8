"""One run of a job on a node."""
