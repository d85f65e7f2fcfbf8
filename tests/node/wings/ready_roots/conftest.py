"""All of these tests need root."""

from __future__ import annotations

from tests.root.conftest import as_root

__all__ = ["as_root"]
