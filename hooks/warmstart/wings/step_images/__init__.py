"""A socket on each node, at which steps ask root for images (docs/wings/step_images.md)."""
