"""warmstart: Slurm job hooks that hand every job an imported image and warm caches."""
