"""The declaration of the wing."""

from __future__ import annotations

from warmstart.wing import Wing

WING = Wing(about="the report as one HTML page", commands={"page": "page"})
