"""The release matrix: the tests that talk to Slurm, on each release, in root file systems of tests/releases."""
