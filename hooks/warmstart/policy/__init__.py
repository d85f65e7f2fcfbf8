"""The site's policy: schema, loader, compiled form, matching."""
