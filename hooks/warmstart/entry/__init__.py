"""What Slurm, pyxis, systemd and SlurmUser start, and what only these use. Exit statuses are decided here."""
