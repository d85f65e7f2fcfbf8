"""The form of the report: `warmstart report --html FILE`."""

from __future__ import annotations

from warmstart.report.summary import Summary
from warmstart.report.wings import Form


def _page(summary: Summary, made: str) -> str:
    from warmstart.wings.page.page import page

    return page(summary, made)


FORMS = {"html": Form("Write one HTML page instead.", _page)}
