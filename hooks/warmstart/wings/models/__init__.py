"""Weights of models, which jobs read from copies on their node's disk (docs/wings/models.md)."""
