"""A real Slurm cluster, an image registry and odd file systems on one host, for tests and the demo.

Not pytest code: `tests/conftest.py` wraps it, `make demo` uses it as it is.
"""
