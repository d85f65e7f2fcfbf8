"""A tree in pods of Slurm in Kubernetes. `tests/releases/test_pods.py` runs it in a root with what they need."""

from __future__ import annotations

from tests.releases.pods import cluster, installed
from tests.slurm.wings.trees.test_trees import (
    test_the_first_job_reads_the_tree_itself_and_the_second_its_copy,
)

__all__ = ["cluster", "installed", "test_the_first_job_reads_the_tree_itself_and_the_second_its_copy"]
