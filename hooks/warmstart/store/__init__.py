"""The shared store: layout, locks, publishing, bundles, index. Runs as the store's owner."""
