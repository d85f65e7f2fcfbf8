"""Seed: make the store's bundles visible to a job. Runs as root in the prolog and in maintenance."""
