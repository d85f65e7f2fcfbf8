"""Entry points: Slurm's hooks, pyxis's importer, the command line. Only these modules decide an exit status."""
