"""Foreign bytes for every parser of such: python -m tests.fuzz."""
