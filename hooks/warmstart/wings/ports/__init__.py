"""One address and reserved ports for all nodes of a job (docs/wings/ports.md)."""
