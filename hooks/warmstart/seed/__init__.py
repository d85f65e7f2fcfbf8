"""Seeding: what root does on a node to show the store's bundles to a job."""
