"""What the release matrix reads and writes: pytest's report, and the page of releases."""

from __future__ import annotations

from tests.matrix.releases import outcomes
from tools.matrix import Release, page

FILE = "tests/integration/test_spank.py"
REPORT = """\
<testsuites><testsuite>
<testcase classname="tests.integration.test_spank" name="test_a[x.y]" />
<testcase classname="tests.integration.test_spank" name="test_b"><failure message="no">no</failure></testcase>
<testcase classname="tests.integration.test_spank" name="test_c"><skipped message="torch">why</skipped></testcase>
<testcase classname="tests.integration.test_spank" name="test_d" />
<testcase classname="tests.integration.test_spank" name="test_d"><error message="teardown">no</error></testcase>
</testsuite></testsuites>
"""


def test_a_report_is_read() -> None:
    """A test whose teardown fails, too, has failed."""
    assert outcomes(REPORT) == {
        f"{FILE}::test_a[x.y]": "passed",
        f"{FILE}::test_b": "failed",
        f"{FILE}::test_c": "skipped",
        f"{FILE}::test_d": "failed",
    }


def test_the_page_shows_what_did_not_pass() -> None:
    """And why tests were left out."""
    versions = {"Slurm": "22.05.8", "Python": "3.11.2", "squashfs-tools": "4.5.1"}
    old = Release("bookworm", versions, 9, {f"{FILE}::test_a": "passed", f"{FILE}::test_b": "passed"}, {})
    outcomes_of_new = {f"{FILE}::test_a": "skipped", f"{FILE}::test_c": "passed"}
    new = Release("sid", versions | {"Slurm": "26.05.5"}, 8, outcomes_of_new, {f"{FILE}::test_b": "it cannot"})
    text = page([old, new])
    assert f"| `{FILE}` | 2 | 1, **1 not passed**, [1 left out](#exceptions) |" in text
    assert f"| 26.05.5 | `{FILE}::test_b` | it cannot |\n" in text
