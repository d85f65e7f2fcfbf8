"""A job whose image is not there in time goes back into Slurm's queue (docs/wings/requeue.md)."""
