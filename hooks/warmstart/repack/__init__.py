"""Repack: compact, promote, verify, export and receive bundles. Runs as root in maintenance and on the command line."""
