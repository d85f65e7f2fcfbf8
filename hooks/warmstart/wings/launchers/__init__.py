"""Images shared with other launchers, under their lock and their names (docs/wings/launchers.md)."""
