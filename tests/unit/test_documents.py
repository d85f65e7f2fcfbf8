"""The documents hold together: links and anchors, commands, the navigation of the site, the length of lines."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tools import documents
from tools.documents import ROOT

LINK = re.compile(r"(?:\]\(|\bsrc(?:set)?=\")(?!https?:|mailto:)([^)#\s\"]*)(?:#([^)\s\"]*))?[)\"]")
LONGEST = 120
DOCUMENTS = documents.documents()
FOR_CONTAINERS = ("hooks.d/40-warmstart.sh", "mounts.d/50-warmstart.fstab")
FORMS = sorted((ROOT / ".github").rglob("*.yml"))


def name(path: Path) -> str:
    """Return a document's path in the repository, the name of its test."""
    return str(path.relative_to(ROOT))


def anchors(path: Path) -> set[str]:
    """Return the anchors that GitHub, and the site, give to a document's headings."""
    found: set[str] = set()
    for _, line, is_code in documents.lines(path.read_text()):
        if not is_code and (heading := re.match(r"#+ (.+)", line)):
            text = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading[1])
            anchor = re.sub(r"[^\w\- ]", "", text.lower()).strip().replace(" ", "-")
            number = next(n for n in range(100) if (f"{anchor}-{n}" if n else anchor) not in found)
            found.add(f"{anchor}-{number}" if number else anchor)
    return found


@pytest.mark.parametrize("path", DOCUMENTS, ids=name)
def test_every_link_leads_somewhere(path: Path) -> None:
    """To a file of the repository, and to a heading of it."""
    prose = "\n".join(line for _, line, is_code in documents.lines(path.read_text()) if not is_code)
    broken = []
    for target, anchor in LINK.findall(prose):
        to = (path.parent / target).resolve() if target else path
        if not to.exists() or (anchor and anchor not in anchors(to)):
            broken.append(f"{target}#{anchor}")
    assert not broken


@pytest.mark.parametrize("path", DOCUMENTS, ids=name)
def test_no_link_has_a_files_name_as_its_text(path: Path) -> None:
    """It says what is there: `[installing](install.md)`."""
    assert not re.findall(r"\[`?[\w./-]+\.md`?(?:,[^]]*)?\]\(", path.read_text())


@pytest.mark.parametrize("path", [*DOCUMENTS, *FORMS], ids=name)
def test_every_command_that_is_shown_exists(path: Path) -> None:
    """With its options: in blocks of code and in prose."""
    assert not [(*each, problem) for each in documents.shown(path) if (problem := documents.problem(each.words))]


def test_commands_are_found_in_blocks_and_in_prose(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With prompts, pipes and continued lines; what does not exist is found."""
    monkeypatch.setattr(documents, "ROOT", tmp_path)
    page = tmp_path / "page.md"
    page.write_text(
        "Run `warmstart cache ls`.\n\n"
        "    # warmstart doctor --frob | head\n    sudo warmstart plan --user \\\n      a -z\n"
        "    srun -N2 warmstart doctor --moot monday\n"
        "\n```\n$ warmstart report --since 7d && warmstart audit -n 5\nwarmstart frobs nothing here\n```\n"
    )
    shown = list(documents.shown(page))
    assert [(each.place, documents.problem(each.words)) for each in shown] == [
        ("page.md:1", "no command ls"),
        ("page.md:3", "no option --frob"),
        ("page.md:5", "no option -z"),
        ("page.md:6", "no option --moot"),
        ("page.md:9", ""),
        ("page.md:9", ""),
    ]


def code(path: Path) -> list[str]:
    """Return what a document shows as code: the lines of its blocks, without the fences, and `code` of its prose."""
    shown: list[str] = []
    for _, line, is_code in documents.lines(path.read_text()):
        shown += [line] * (not line.lstrip().startswith("```")) if is_code else re.findall(r"`([^`]+)`", line)
    return shown


@pytest.mark.parametrize("path", DOCUMENTS, ids=name)
def test_make_targets_that_are_shown_exist(path: Path) -> None:
    """`make demo` and its like; `setcap` is one of enroot's."""
    makefiles = [ROOT / "Makefile", *(ROOT / "packaging").rglob("*.mk")]
    targets = set(re.findall(r"^([a-z-]+):", "".join(path.read_text() for path in makefiles), re.MULTILINE))
    shown = [target for text in code(path) for target in re.findall(r"\bmake ([a-z][a-z-]*)\b(?!=)", text)]
    assert {*shown} - {"setcap"} <= targets


@pytest.mark.parametrize("path", DOCUMENTS, ids=name)
def test_modules_and_programs_of_the_repository_that_are_shown_exist(path: Path) -> None:
    """`python -m tests.demo`, `tests/newer/enter`: what a reader may want to start."""
    for text in code(path):
        modules = [module.replace(".", "/") for module in re.findall(r"-m ((?:tests|tools|warmstart)\b[\w.]*)", text)]
        places = [f"hooks/{module}" if module.startswith("warmstart") else module for module in modules]
        assert not [each for each in places if not (ROOT / f"{each}.py").exists() and not (ROOT / each).is_dir()], text
        files = re.findall(r"(?:^|(?<=[ =(]))((?:\.ci|packaging|tests|tools)/[\w/.-]*)(?![\w/.{*<-])", text)
        assert not [each for each in files if not (ROOT / each.rstrip(".,")).exists()], text


@pytest.mark.parametrize("path", DOCUMENTS, ids=name)
def test_no_merge_was_left_undone(path: Path) -> None:
    """Its marks look like headings and tables to other tests."""
    assert not re.search(r"^(?:<{7}|>{7}) ", path.read_text(), re.MULTILINE)


@pytest.mark.parametrize("path", DOCUMENTS, ids=name)
def test_lines_of_prose_fit(path: Path) -> None:
    """Rows of tables, code and what a long address makes long are exempt."""
    prose = ((number, line) for number, line, is_code in documents.lines(path.read_text()) if not is_code)
    long = [number for number, line in prose if len(line) > LONGEST and not line.lstrip().startswith("|")]
    addresses = [number for number in long if re.search(r"https?://\S{60}", path.read_text().split("\n")[number - 1])]
    assert long == addresses


def test_every_decision_with_a_page_is_in_the_index_and_has_a_status() -> None:
    """Under its number and title; a status says since when. Numbers are in order, and each stands once."""
    folder = ROOT / "docs/adr"
    index = (folder / "index.md").read_text()
    rows = []
    for path in sorted(folder.glob("0*.md")):
        title, _, status, *_ = path.read_text().split("\n")
        number, _, words = title.removeprefix("# ").partition(". ")
        assert path.name.startswith(f"{number:0>4}-")
        assert re.match(r"\*\*Status\*\*: (proposed|accepted|superseded by .+), \d{4}-\d\d-\d\d\b", status), path
        rows.append(f"| [{number}]({path.name}) | {words} |")
    assert re.findall(r"^\| \[.*", index, re.MULTILINE) == rows
    numbers = [int(number) for number in re.findall(r"^\| \[?(\d+)", index, re.MULTILINE)]
    assert numbers == sorted({*numbers})


@pytest.mark.report
@pytest.mark.parametrize("page", ["docs/start/ten-minutes.md", "docs/operations/slurm-settings.md"])
def test_a_page_gives_containers_the_task_prolog_before_slurm_names_it(page: str) -> None:
    """Since pyxis runs TaskProlog inside, whoever types a page from its top breaks no container meanwhile."""
    before, included, _ = (ROOT / page).read_text().partition("include warmstart.conf")
    assert included
    assert [file for file in FOR_CONTAINERS if file not in before] == []
    assert "pyxis" in before


@pytest.mark.report
def test_the_shipped_slurm_conf_says_what_containers_need_first() -> None:
    """Above the setting itself, and before its Prolog: a comment that is read last is read too late."""
    before, is_set, _ = (ROOT / "packaging/slurm/warmstart.conf").read_text().partition("\nProlog=")
    assert is_set
    assert [file for file in FOR_CONTAINERS if file not in before] == []
    assert "pyxis" in before
    role = (ROOT / "packaging/ansible/roles/warmstart/tasks/main.yml").read_text()
    assert [file for file in FOR_CONTAINERS if file not in role.partition("include warmstart.conf")[0]] == []
