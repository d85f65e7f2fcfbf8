"""The page asks for nothing, runs nothing, and shows what users wrote as text."""

from __future__ import annotations

import re
from html.parser import HTMLParser

import pytest

from tests.lib import sample_log
from warmstart.audit.runs import FAILED, Failure, Harvest, ImageUse, Run, runs
from warmstart.report.summary import Counted, summarize
from warmstart.wings.page.page import page

VOID = {"meta", "wbr"}


class Checked(HTMLParser):
    """Collects the tags, and checks that each is closed."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.attributes: set[str] = set()
        self._open: list[str] = []
        self.feed(text)
        self.close()
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note an element."""
        self.tags.add(tag)
        self.attributes |= {name for name, _ in attrs}
        self._open += [] if tag in VOID else [tag]

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note an element that closes itself."""
        self.tags.add(tag)
        self.attributes |= {name for name, _ in attrs}

    def handle_endtag(self, tag: str) -> None:
        """Check that it was the last one to be opened."""
        assert self._open.pop() == tag


@pytest.fixture(scope="module")
def week() -> str:
    """Return the page of a week."""
    return page(summarize(runs(sample_log.lines(500))), "2026-02-09T06:00:00Z")


@pytest.mark.threat(20)
def test_it_is_self_contained(week: str) -> None:
    """No script, no link, no image, no font, and a policy that forbids them."""
    checked = Checked(week)
    assert checked.tags & {"script", "link", "img", "iframe", "object", "form", "a", "base"} == set()
    assert checked.attributes & {"src", "href", "xlink:href", "style", "srcset", "onload"} == set()
    assert "default-src 'none'" in week
    assert not re.search(r"url\(|@import|https?:", week)


def test_it_has_every_section(week: str) -> None:
    for heading in (
        "Job starts",
        "Hit rate by profile",
        "Hit rate by user",
        "Most used images",
        "Hooks",
        "Jobs refused",
    ):
        assert f">{heading}<" in week
    for media in ("prefers-color-scheme: dark", "@media print"):
        assert media in week
    assert "2026-02-09T06:00:00Z" in week
    assert "A hit saves the mean time" in week


@pytest.mark.threat(20)
def test_names_are_text() -> None:
    """Users choose image references, and so what is in them."""
    hostile = '"><script>alert(1)</script>'
    run = Run("prolog", "0a", "n1", user=hostile, first="2026-01-31", last="2026-01-31", head=True)
    run.images = [ImageUse(hostile, "d", "reused", 1, 0.1, 0.0)]
    run.warm, run.cold = [hostile], {hostile: "<b>"}
    assert Checked(page(summarize([run]), "now")).tags & {"script", "b"} == {"b"}  # the tiles' own


def test_what_nobody_knows_is_no_bar() -> None:
    run = Run("epilog", "0b", "n1", user="alice", harvests=[Harvest("numba", 0, 0, 0, 0, 0.1, use="untouched")])
    bars = re.findall(r'class="[ab]" x="[^"]*" y="0" width="(\d+\.\d\d)"', page(summarize([run]), "now"))
    assert set(bars) == {"0.00"}


def test_whose_it_is() -> None:
    run = Run("prolog", "0a", "n1", cluster="hpc<1>", user="alice", first="2026-01-31", last="2026-01-31", head=True)
    text = page(summarize([run]), "now")
    for words in ("of 1 user<", "1 run on 1 node<", "<title>warmstart report: hpc&lt;1&gt;</title>"):
        assert words in text
    assert "of 2 users" in page(summarize([run, Run("prolog", "0b", "n1", user="bob", head=True)]), "now")
    assert "hpc, x" in page(summarize([Run("prolog", "0a", "n1", cluster=name) for name in ("x", "hpc")]), "now")


@pytest.mark.report
@pytest.mark.xfail(
    strict=True, raises=AssertionError, reason="the page shows codes of errors and reasons as they are in the log"
)
@pytest.mark.parametrize("table", ["Failures", "Whose caches began cold"])
def test_who_reads_it_need_not_know_our_names(table: str) -> None:
    """Heads of departments do; the log has these names."""
    run = Run("prolog", "0a", "n1", job=7, user="alice", first="2026-01-31", last="2026-01-31", head=True)
    run.failures = [Failure(FAILED, "models", "model-unusable", "it cannot be read", "")]
    run.cold = {"numba": "nothing-published"}
    ended = Run("epilog", "0b", "n1", job=7, user="alice", first="2026-01-31", last="2026-01-31")
    ended.harvests = [Harvest("numba", 1, 0, 0, 9, 0.1, use="built")]
    (section,) = re.findall(rf"<h2>{table}</h2>(.*?)</section>", page(summarize([run, ended]), "now"))
    cells = re.findall(r"<td>(.*?)</td>", section)
    assert cells
    assert not any(re.search(r"\b[a-z]+(-[a-z]+)+\b", cell) for cell in cells)


def test_nothing_to_show_is_a_page() -> None:
    assert "none" in page(summarize([]), "now")


def test_what_wings_count_is_shown() -> None:
    text = page(summarize([])._replace(of_wings=(Counted("things made: new", 3), Counted("thing bytes", 4096))), "now")
    for words in ("things made: new", "thing bytes", "4KiB"):
        assert words in text
