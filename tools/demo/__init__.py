"""`make demo`: a real cluster and registry on this machine, and what warmstart does for its jobs."""
