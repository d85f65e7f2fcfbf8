"""The site's policy: its model, its loader, its compiled form."""
