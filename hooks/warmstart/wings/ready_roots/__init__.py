"""Containers that start from the tree into which their node has unpacked their image (docs/wings/ready_roots.md)."""
