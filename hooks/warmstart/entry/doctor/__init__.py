"""`warmstart doctor`, one module for each group of checks; nothing here changes what it looks at."""
