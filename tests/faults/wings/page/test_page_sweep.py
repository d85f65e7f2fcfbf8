"""The report's page in a real browser."""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import ClassVar

import pytest

from tests.lib import browser, sample_log
from warmstart.audit.runs import Run, runs
from warmstart.report.summary import summarize
from warmstart.wings.page.page import page

pytestmark = pytest.mark.sweep


@pytest.fixture(scope="module")
def week(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the page of a week."""
    path = tmp_path_factory.mktemp("page") / "report.html"
    path.write_text(page(summarize(runs(sample_log.lines(4200))), "2026-02-09T06:00:00Z"))
    return path


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
    run = Run("prolog", "0a", "gpu01", user=name, first="2026-02-04", last="2026-02-04", head=True, warm=[name])
    told = page(summarize([run]), "now")
    unescaped = told.replace("</body>", f"{name}</body>")
    control = unescaped.replace("Content-Security-Policy", "x")
    asked = {}
    for kind, text in (("page", told), ("unescaped", unescaped), ("control", control)):
        Asked.paths.clear()
        (tmp_path / "page.html").write_text(text)
        browser.screenshot(tmp_path / "page.html", tmp_path / "page.png", (400, 400), browser.LIGHT)
        asked[kind] = sorted(Asked.paths)
    assert asked == {"page": [], "unescaped": [], "control": ["/image", "/style"]}


@pytest.mark.parametrize(("scheme", "is_dark"), [(browser.LIGHT, False), (browser.DARK, True)])
@pytest.mark.parametrize("width", [400, 1080])
def test_it_is_drawn_light_and_dark(week: Path, tmp_path: Path, scheme: str, width: int, *, is_dark: bool) -> None:
    """On a telephone, too; the console is silent."""
    assert browser.screenshot(week, tmp_path / "page.png", (width, 900), scheme) == ""
    assert (sum(background(tmp_path / "page.png")) < 3 * 64) == is_dark
    assert (tmp_path / "page.png").stat().st_size > 20_000  # an empty page is a tenth of it


WIDTH = """
const page = frame.contentDocument.documentElement, sections = [...page.querySelectorAll('section')];
document.title = page.scrollWidth + Math.max(...sections.map(each => each.scrollWidth - each.clientWidth));
"""


def test_it_fits_a_telephone(week: Path, tmp_path: Path) -> None:
    """Nothing is wider than the screen, or is cut off by what it is in; the control is."""
    widths = []
    for more in ("", '<section><h2>x</h2><div style="width: 500px">x</div></section>'):
        text = week.read_text().replace("</body>", f"{more}</body>").replace("&", "&amp;").replace('"', "&quot;")
        harness = tmp_path / "harness.html"
        harness.write_text(f'<iframe id="frame" width="390" height="900" onload="{WIDTH}" srcdoc="{text}"></iframe>')
        (width,) = re.findall(r"<title>(\d+)</title>", browser.content(harness))
        widths.append(int(width))
    assert widths[0] <= 390 < widths[1]


def test_it_prints(week: Path, tmp_path: Path) -> None:
    """On a few sheets."""
    browser.pdf(week, tmp_path / "report.pdf")
    content = (tmp_path / "report.pdf").read_bytes()
    assert content.startswith(b"%PDF")
    assert 2 <= len(re.findall(rb"/Type\s*/Page\b", content)) <= 6


def background(path: Path) -> tuple[int, ...]:
    """Return the colour of a PNG's first pixel; no filter of PNG changes it."""
    content = path.read_bytes()
    chunks, at = b"", 8
    while at < len(content):
        length, kind = int.from_bytes(content[at : at + 4], "big"), content[at + 4 : at + 8]
        chunks += content[at + 8 : at + 8 + length] if kind == b"IDAT" else b""
        at += 12 + length
    return tuple(zlib.decompress(chunks)[1:4])
