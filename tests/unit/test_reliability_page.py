"""The page of promises names tests that exist, and is made of the reports that sweeps write."""

from __future__ import annotations

import json
import re
from pathlib import Path

from tests import reliability
from tests.support.sweeping import Killed, Outcome

TESTS = Path(reliability.__file__).parent


def test_each_named_test_exists() -> None:
    """A renamed test takes its promise along; and the page is the one that its program writes."""
    page = (TESTS.parent / "docs/reliability.md").read_text()
    for promise in reliability.PROMISES:
        assert promise.text in page
        for named in promise.tests:
            file, _, function = named.partition("::")
            assert f"`{named}`" in page
            assert re.search(rf"def {function or 'test_'}", (TESTS / file).read_text()), named


def test_the_page_counts_what_the_sweeps_found(tmp_path: Path) -> None:
    """By hook, by part and errno; fragments of other suites stand as they are."""
    outcomes = [
        Outcome("prolog", "open", "a.py:f", "store", "EIO", "store-failed (store), job-refused (user)", [], ""),
        Outcome("prolog", "open", "a.py:f", "store", "ESTALE", "none", ["x"], "maintain"),
        Outcome("prolog", "mkdir", "a.py:f", "state", "EROFS", "state-unusable (node); drains", [], ""),
    ]
    kills = [Killed("epilog", 1, [], ""), Killed("epilog", 2, ["x"], "maintain")]
    for name, found in (("errors-prolog", outcomes), ("kills-epilog", kills)):
        text = {"cases": 10, "outcomes": [one._asdict() for one in found]}
        (tmp_path / f"{name}.json").write_text(json.dumps(text))
    (tmp_path / "load.md").write_text("2,000 jobs\n")
    page = reliability.page(tmp_path)
    assert "| prolog | 2 | 3 | 10 | 1 | 0 | 1 | 1 | 1 |" in page
    assert "| state | EROFS | 0 | 0 | 0 | 1 |" in page
    assert "| epilog | 10 | 2 | 1 |" in page
    assert "Not run." in page  # make fuzz
    assert page.endswith("\n## Load\n\n2,000 jobs\n")
