"""What is done off the clock of jobs: a module for each kind of the queue (docs/architecture.md, The queue)."""
