"""Squashfs images: references, validity, single flight, importers."""
