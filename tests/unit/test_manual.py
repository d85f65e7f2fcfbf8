"""The manual pages and completion that packages bring."""

from __future__ import annotations

import gzip
from pathlib import Path

from tools import manual
from warmstart.cli import cli


def test_every_command_has_a_page() -> None:
    """And the first page names them all."""
    pages = manual.pages()
    assert [*pages] == [
        "warmstart",
        *(f"warmstart-{name}" for name in cli.list_commands(cli.make_context("x", ["plan"]))),
    ]
    for name in pages:
        assert name == "warmstart" or name.replace("-", "\\-") in pages["warmstart"]


def test_a_page_has_the_commands_below_it_and_their_options() -> None:
    """With the texts of --help."""
    page = manual.pages()["warmstart-profile"]
    assert "\nwarmstart\\-profile \\- Try a profile of the policy on files, without a job\n" in page
    assert '\n.SH "WARMSTART PROFILE TRY"\n' in page
    assert "\n\\fB\\-\\-json\\fR\nPrint JSON instead of text.\n" in page


def test_no_line_is_a_request_by_chance() -> None:
    """Text that begins like one is escaped, and so is what roff would read as its own."""
    assert manual._escaped(".hidden -x \\n") == "\\&.hidden \\-x \\en"
    for page in manual.pages().values():
        requests = {line.split()[0] for line in page.splitlines() if line.startswith((".", "'"))}
        assert requests <= {".TH", ".SH", ".TP", ".PP", ".nf", ".fi"}


def test_what_is_written(tmp_path: Path) -> None:
    """Pages that are the same each time, and what each shell runs."""
    manual.write(str(tmp_path), "site-functions")
    page = tmp_path / "man/man1/warmstart-plan.1.gz"
    before = page.read_bytes()
    manual.write(str(tmp_path), "site-functions")
    assert page.read_bytes() == before
    assert gzip.decompress(before).decode() == manual.pages()["warmstart-plan"]
    for path in manual.COMPLETIONS.values():
        assert "_WARMSTART_COMPLETE" in (tmp_path / path.format(zsh="site-functions")).read_text()
