"""The page asks for nothing, runs nothing, and shows what users wrote as text."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from tests.lib import sample_log
from tests.lib.command_line import run
from tests.lib.hook_lines import NOW, epilog, finished
from warmstart.audit.line import Line
from warmstart.paths import Installation
from warmstart.report.summary import summarize
from warmstart.wings.page import charts
from warmstart.wings.page.charts import Series
from warmstart.wings.page.commands import by_day
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
        self.tags.add(tag)
        self.attributes |= {name for name, _ in attrs}
        self._open += [] if tag in VOID else [tag]

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes |= {name for name, _ in attrs}

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag


def shown(*lines: Line) -> str:
    return page(summarize(lines, NOW), by_day(lines), "now")


@pytest.fixture(scope="module")
def week() -> str:
    lines = [*sample_log.lines(500)]
    return page(summarize(lines, sample_log.END), by_day(lines), "2026-02-09T06:00:00Z")


@pytest.mark.threat(20)
def test_it_is_self_contained(week: str) -> None:
    """No script, no link, no image, no font, and a policy that forbids them."""
    checked = Checked(week)
    assert checked.tags & {"script", "link", "img", "iframe", "object", "form", "a", "base"} == set()
    assert checked.attributes & {"src", "href", "xlink:href", "style", "srcset", "onload"} == set()
    assert "default-src 'none'" in week
    assert not re.search(r"url\(|@import|https?:", week)


@pytest.mark.threat(20)
def test_names_are_text() -> None:
    """Users choose image references, and so what is in them."""
    hostile = '"><script>alert(1)</script>'
    images = [{"image": hostile, "how": "reused", "ms": 100}]
    line = finished(user=hostile, head=True, images=images, caches={hostile: {"warm": False, "cold": "<b>"}})
    tags = Checked(shown(line, epilog(caches={hostile: {"use": "hit"}}))).tags
    assert tags & {"script", "b"} == {"b"}  # the tiles' own


def test_what_nobody_knows_is_no_bar() -> None:
    text = shown(epilog(caches={"numba": {"use": "untouched"}}))
    assert set(re.findall(r'class="[ab]" x="[^"]*" y="0" width="(\d+\.\d\d)"', text)) == {"0.00"}


def test_reasons_are_sentences() -> None:
    """For those who do not know the log's words; failures have the codes of docs/reference/errors.md."""
    reasons = {"numba": "nothing-published", "jax": "nodes-differ: cpu"}
    line = finished(caches={profile: {"warm": False, "cold": reason} for profile, reason in reasons.items()})
    (section,) = re.findall(r"<h2>Whose caches began cold, and why</h2>(.*?)</section>", shown(line))
    cells = re.findall(r"<td>(.*?)</td>", section)
    assert sorted(cells) == [
        "alice: nothing is published for its facts in the scopes that this job reads",
        "alice: the job&#x27;s nodes differ in what its entries depend on",
    ]


def test_each_day_has_its_own_numbers() -> None:
    """A hook belongs to the day on which it ended."""
    lines = [*sample_log.lines(300)]
    whole, days = summarize(lines, sample_log.END), by_day(lines)
    assert [*days] == [f"2026-02-0{day}" for day in range(2, 10)]
    assert sum(day.jobs for day in days.values()) == whole.jobs == 300
    assert sum(day.caches.hit for day in days.values()) == whole.caches.hit


def test_nothing_to_show_is_a_page() -> None:
    assert "none" in shown()


HOSTILE = '<script>&"'


def drawn(svg: str) -> ET.Element:
    return ET.fromstring(svg)


def test_columns_are_stacked() -> None:
    series = [Series("warm", "a", [30, 0]), Series("cold", "b", [10, 20])]
    chart = drawn(charts.columns(["mon", "tue"], series, HOSTILE))
    first, second, third = chart.iter("rect")
    assert [rect.get("class") for rect in (first, second, third)] == ["a", "b", "b"]
    assert float(second.get("y", 0)) < float(first.get("y", 0))
    assert float(second.get("y", 0)) + float(second.get("height", 0)) < float(first.get("y", 0)) + 0.1
    assert [title.text for title in chart.iter("title")] == ["mon: warm 30, cold 10", "tue: warm 0, cold 20"]
    assert chart.get("aria-label") == HOSTILE


def test_no_values_are_no_error() -> None:
    assert drawn(charts.columns([], [Series("x", "a", [])], "x")).get("role") == "img"
    assert "rect" in charts.bar([("a", 0)], 0)


def test_a_report_is_written_as_a_page(tmp_path: Path) -> None:
    nowhere, path = Installation(str(tmp_path / "prefix")), tmp_path / "report.html"
    sample_log.write(tmp_path / "audit.jsonl", 20)
    options = ("page", "--from", str(tmp_path / "audit.jsonl"), "--since", "2026-02-01")
    result = run(nowhere, *options, str(path))
    assert (result.exit_code, result.stdout.startswith(f"wrote {path}")) == (0, True)
    assert path.read_text().startswith("<!DOCTYPE html>")
    failed = run(nowhere, *options, f"{tmp_path}/no/report.html")
    assert (failed.exit_code, "No such file" in failed.stderr) == (2, True)
