"""What warmstart asks Slurm, never on the hot path."""
