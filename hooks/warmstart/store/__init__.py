"""What images and caches share of the store. Runs as the store's owner, but for its client."""
