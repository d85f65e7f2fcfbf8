"""The audit: event catalogue, journal, sink, queries."""
