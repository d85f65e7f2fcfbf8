"""The release matrix: the same tests against each release of Slurm, in root file systems of tests/newer."""
