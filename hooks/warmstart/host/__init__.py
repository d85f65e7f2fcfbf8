"""This machine: files, child processes, privilege, deadlines."""
