"""What the audit log says, added up: runs of hooks, summaries, and the story of one job. Reads no file itself."""
