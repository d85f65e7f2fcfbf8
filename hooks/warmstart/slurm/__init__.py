"""Queries to Slurm (never on the hot path), job specs, and host lists."""
