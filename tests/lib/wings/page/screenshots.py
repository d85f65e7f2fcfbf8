"""Draw the pictures of docs/wings/page.md: `make screenshots`."""

from __future__ import annotations

import tempfile
from pathlib import Path

from tests.lib import browser, sample_log
from warmstart.report.summary import summarize
from warmstart.wings.page.commands import by_day
from warmstart.wings.page.page import page

IMAGES = Path(__file__).resolve().parents[4] / "docs" / "wings"
SIZE = (1000, 1060)


def main() -> None:
    """Draw the report's page of the sample log, light and dark."""
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory, "report.html")
        lines = [*sample_log.lines(4200)]
        path.write_text(page(summarize(lines, sample_log.END), by_day(lines), "2026-02-09T06:00:00Z"))
        for name, scheme in (("light", browser.LIGHT), ("dark", browser.DARK)):
            browser.screenshot(path, IMAGES / f"page-{name}.png", SIZE, scheme)


if __name__ == "__main__":
    main()
