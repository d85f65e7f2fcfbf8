"""The report as one HTML page (docs/wings/page.md)."""
