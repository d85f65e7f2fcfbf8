"""The operating system: files, mounts, child processes, identities, deadlines."""
