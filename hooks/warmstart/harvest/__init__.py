"""Harvest: copy new cache entries from a job to the store. Runs as root in the epilog and in maintenance."""
