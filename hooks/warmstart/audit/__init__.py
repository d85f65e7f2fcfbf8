"""The audit: the log, its lines and events, queries."""
