"""The documents hold together: links and anchors, commands, the navigation of the site, the length of lines."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tools import documents
from tools.documents import ROOT

LINK = re.compile(r"(?:\]\(|\bsrc(?:set)?=\")(?!https?:|mailto:)([^)#\s\"]*)(?:#([^)\s\"]*))?[)\"]")
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
    prose = "\n".join(line for _, line, is_code in documents.lines(path.read_text()) if not is_code)
    broken = []
    for target, anchor in LINK.findall(prose):
        to = (path.parent / target).resolve() if target else path
        if not to.exists() or (anchor and anchor not in anchors(to)):
            broken.append(f"{target}#{anchor}")
    assert not broken


@pytest.mark.parametrize("path", [*DOCUMENTS, *FORMS], ids=name)
def test_every_command_that_is_shown_exists(path: Path) -> None:
    assert not [(*each, problem) for each in documents.shown(path) if (problem := documents.problem(each.words))]


def code(path: Path) -> list[str]:
    """Return what a document shows as code: the lines of its blocks, without the fences, and `code` of its prose."""
    shown: list[str] = []
    for _, line, is_code in documents.lines(path.read_text()):
        shown += [line] * (not line.lstrip().startswith("```")) if is_code else re.findall(r"`([^`]+)`", line)
    return shown


@pytest.mark.parametrize("path", DOCUMENTS, ids=name)
def test_make_targets_that_are_shown_exist(path: Path) -> None:
    makefiles = [ROOT / "Makefile", *(ROOT / "packaging").rglob("*.mk")]
    targets = set(re.findall(r"^([a-z-]+):", "".join(path.read_text() for path in makefiles), re.MULTILINE))
    shown = [target for text in code(path) for target in re.findall(r"\bmake ([a-z][a-z-]*)\b(?!=)", text)]
    assert {*shown} - {"setcap"} <= targets


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
