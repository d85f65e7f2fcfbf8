"""The end of a run on a node: `release` is how it begins, `waiting` what goes on off the clock of its job."""
