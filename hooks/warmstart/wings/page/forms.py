"""The form of the report: `warmstart report --html FILE`."""

from __future__ import annotations

from collections.abc import Sequence

from warmstart.report.summary import Summary
from warmstart.report.wings import Form, Table


def _page(summary: Summary, sections: Sequence[Table], made: str) -> str:
    from warmstart.wings.page.page import page

    return page(summary, sections, made)


FORMS = {"html": Form("Write one HTML page instead.", _page)}
