"""Trees of small files on the shared file system that a job reads from a packed copy (docs/wings/trees.md)."""
