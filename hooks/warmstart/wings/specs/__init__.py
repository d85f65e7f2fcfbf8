"""What nodes cannot know of a job, written down by slurmctld's hooks; pyslurm (docs/wings/specs.md)."""
