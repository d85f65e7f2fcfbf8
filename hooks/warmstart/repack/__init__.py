"""Work on published bundles off the job's clock. Runs as root in maintenance and at the command line."""
