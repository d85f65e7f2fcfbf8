"""Slurm's hooks on the controller: each module is a program of PREFIX/libexec/warmstart."""
