"""The programs that make an image of a reference, behind one small interface."""
