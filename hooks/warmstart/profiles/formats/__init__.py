"""Checks of file formats for validators. Imported only where content is judged."""
