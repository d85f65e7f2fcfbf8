"""`make bench`: warmstart's figures, each beside its peer's, in one run. The ratio is what counts."""
