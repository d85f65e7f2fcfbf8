"""The shared store: layout, locks, publishing, bundles, index."""
