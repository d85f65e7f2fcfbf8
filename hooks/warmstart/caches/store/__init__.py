"""The caches in the store: bundles and listings in generations. Runs as the store's owner, but for its client."""
