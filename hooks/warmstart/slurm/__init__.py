"""Queries to Slurm (never on the hot path), and host lists."""
