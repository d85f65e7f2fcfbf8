"""Harvesting: from a job's cache to the store. Runs as root in the epilog and in maintenance."""
