"""The report's page in a real browser."""

from __future__ import annotations

from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import ClassVar

import pytest

from tests.lib import browser
from tests.lib.hook_lines import NOW, epilog, finished
from warmstart.report.summary import summarize
from warmstart.wings.page.page import page

pytestmark = pytest.mark.sweep


class Asked(BaseHTTPRequestHandler):
    """Notes what is asked for."""

    paths: ClassVar[list[str]] = []

    def do_GET(self) -> None:
        """Have nothing."""
        self.paths.append(self.path)
        self.send_error(404)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class's name
        """Say nothing."""


@pytest.fixture
def server() -> Iterator[int]:
    """Return the port of a server on this host."""
    with ThreadingHTTPServer(("127.0.0.1", 0), Asked) as found:
        thread = Thread(target=found.serve_forever)
        thread.start()
        yield found.server_port
        found.shutdown()
        thread.join()


def test_the_page_asks_for_nothing(server: int, tmp_path: Path) -> None:
    """Not even for what a user wrote into a name: neither as text, nor where the escaping failed."""
    name = f'"><img src="http://127.0.0.1:{server}/image"><link rel=stylesheet href="http://127.0.0.1:{server}/style">'
    lines = [finished(user=name, head=True), epilog(user=name, caches={name: {"use": "hit"}})]
    told = page(summarize(lines, NOW), {}, "now")
    unescaped = told.replace("</body>", f"{name}</body>")
    control = unescaped.replace("Content-Security-Policy", "x")
    asked = {}
    for kind, text in (("page", told), ("unescaped", unescaped), ("control", control)):
        Asked.paths.clear()
        (tmp_path / "page.html").write_text(text)
        browser.screenshot(tmp_path / "page.html", tmp_path / "page.png", (400, 400), browser.LIGHT)
        asked[kind] = sorted(Asked.paths)
    assert asked == {"page": [], "unescaped": [], "control": ["/image", "/style"]}
