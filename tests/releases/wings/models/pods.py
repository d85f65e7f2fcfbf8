"""A model in pods of Slurm in Kubernetes. `tests/releases/test_pods.py` runs it in a root with what they need."""

from __future__ import annotations

from tests.releases.pods import cluster, installed
from tests.slurm.wings.models.test_models import test_the_third_job_on_a_node_reads_copies

__all__ = ["cluster", "installed", "test_the_third_job_on_a_node_reads_copies"]
