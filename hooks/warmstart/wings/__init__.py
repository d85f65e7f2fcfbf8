"""Features that a site can do without, a folder for each (docs/architecture.md, Wings)."""
