"""The generated files are those of the schema, and the generator notices when they are not."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import get_args

import pytest

from tools.policy_reference import PAGE, SCHEMA, main
from warmstart.policy.schema import Section, json_schema

REPOSITORY = Path(__file__).resolve().parents[3]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Return a copy of what is generated."""
    for name in (PAGE, SCHEMA):
        (tmp_path / name).parent.mkdir(parents=True)
        shutil.copy(REPOSITORY / name, tmp_path / name)
    return tmp_path


def test_what_is_generated_is_current(capsys: pytest.CaptureFixture[str]) -> None:
    """`make docs` was run after the last change of the schema."""
    assert main(["--check"], REPOSITORY) == 0, capsys.readouterr().err


@pytest.mark.parametrize("name", [PAGE, SCHEMA])
def test_a_stale_file_is_reported_and_renewed(root: Path, capsys: pytest.CaptureFixture[str], name: str) -> None:
    """The check changes nothing, and names the file and the command."""
    (root / name).write_text((root / name).read_text().replace("Time for fetching", "Time for"))
    stale = (root / name).read_text()
    assert main(["--check"], root) == 1
    assert capsys.readouterr().err.startswith(f"{name} is stale: ")
    assert (root / name).read_text() == stale
    assert main([], root) == 0
    assert (root / name).read_text() == (REPOSITORY / name).read_text()
    assert main(["--check"], root) == 0


def test_every_key_has_a_row() -> None:
    """Outside of the rules, in them, and in mappings below lists, optional mappings and names of the site's own."""
    page = (REPOSITORY / PAGE).read_text()
    generated = "".join(re.findall(r"<!-- generated .*?<!-- end -->", page, re.DOTALL))
    rows = re.findall(r"^\| `([^`]+)` \|", generated, re.MULTILINE)
    expected = {"version", "seed.fetch_budget", "images.keep.high", "images.registries", "rules[].match.user"}
    expected |= {"profiles.NAME.entries", "images.credentials.repositories[].match"}
    assert expected <= set(rows)
    assert len(rows) == len(set(rows))
    written = {"profiles", "rules", *(name.rpartition(".")[2] for name in rows)}  # these two have a table each
    for section in sections(Section):
        assert {key for key, field in section.model_fields.items() if field.description} <= written


def test_types_and_defaults_are_written_as_an_admin_writes_them() -> None:
    """One row of each kind of type."""
    page = (REPOSITORY / PAGE).read_text()
    for start in (
        "| `paths.store` | path; required |",
        "| `seed.fetch_budget` | duration; `10s` |",
        "| `harvest.while_running` | duration |",
        "| `on_error.image` | `fail-job`, `run-without`; `fail-job` |",
        "| `harvest.only_successful` | `false` |",
        "| `images.credentials.repositories[].name` | name; required |",
        "| `files.facts` | list of `cpu`, `driver`, `gpu`, `machine`; `gpu` |",
        "| `rules[].match.user` | pattern or list |",
        "| `rules[].env` | mapping |",
    ):
        assert f"\n{start}" in page


def test_every_key_says_what_it_is_for() -> None:
    """A key has a description, or is a mapping that has one."""
    for section in sections(Section):
        assert section.__doc__
        for key, field in section.model_fields.items():
            kinds = [field.annotation, *(get_args(field.annotation) if field.default is None else ())]  # it, or null
            is_section = any(isinstance(kind, type) and issubclass(kind, Section) for kind in kinds)
            assert is_section or field.description, f"{section.__name__}.{key}"


def test_editors_see_no_titles_but_words_for_types() -> None:
    """Pydantic's own titles are the keys' names once more."""
    properties = json_schema()["$defs"]["Harvest"]["properties"]
    titles = [properties[key].get("title") for key in ("budget", "max_size", "only_successful")]
    assert titles == ["duration", "size", None]


def sections(of: type[Section]) -> list[type[Section]]:
    """Return every section of the policy."""
    return [below for cls in of.__subclasses__() for below in (cls, *sections(cls))]
