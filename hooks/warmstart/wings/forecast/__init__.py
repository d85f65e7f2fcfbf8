"""What enforcing the policy would bring to jobs that are only observed (docs/wings/forecast.md)."""
