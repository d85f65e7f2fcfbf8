"""Importers: programs that turn an image in a registry into a squashfs, behind one interface."""
