"""Signed scopes: readers take what a list names that an administrator's key has signed (docs/wings/signing.md)."""
