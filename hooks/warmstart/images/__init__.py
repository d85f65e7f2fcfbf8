"""Squashfs images: what several identities or root alone run; the rooms below say who runs the rest."""
