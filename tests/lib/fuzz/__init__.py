"""Every parser of foreign bytes, and such bytes: for the unit tests, and for `python -m tools.fuzz`."""
