"""The wing's parsers of foreign bytes, for tests/lib/fuzz: none."""

from __future__ import annotations

from tests.lib.fuzz import parsers

PARSERS: dict[str, parsers.Parser] = {}
OWN = {"wings/models/shelf.py:sets": "root's file on the shelf"}
