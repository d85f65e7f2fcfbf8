"""The image store: what runs as the store's owner, and root's client for it."""
