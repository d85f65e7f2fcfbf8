"""docs/start/first-job.md: from a bare Debian to the first warm job."""
