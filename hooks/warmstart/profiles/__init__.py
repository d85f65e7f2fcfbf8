"""One module per tool's cache: variables, entries, validator."""
