"""What `warmstart maintain` does: a node's part and the store's part."""
