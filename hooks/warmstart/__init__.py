"""warmstart: Slurm job hooks that give every job an imported image and warm caches."""
