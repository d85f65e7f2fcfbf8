"""What Slurm and people start; only these modules decide an exit status."""
