"""What mkdocs does besides mkdocs.yml: documents of the root become pages; wings and decisions are in the navigation."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

_OF_THE_ROOT = ("CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md")

_SEARCH, _FETCHED = "assets/search.js", "https://unpkg.com/iframe-worker/shim"


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Fill two parts of the navigation: Wings, with docs/wings, and the last one, Decisions, with docs/adr."""
    wings = next(part for part in config.nav if "Wings" in part)
    wings["Wings"] = sorted(f"wings/{path.name}" for path in Path(config.docs_dir, "wings").glob("*.md"))
    pages = sorted(f"adr/{path.name}" for path in Path(config.docs_dir, "adr").glob("*.md"))
    config.nav[-1]["Internals"][-1]["Decisions"] = [pages.pop(), *pages]  # index.md, then by number
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the documents that lie beside docs/; in their links docs/ is left out."""
    for name in _OF_THE_ROOT:
        text = Path(config.docs_dir).parent.joinpath(name).read_text()
        files.append(File.generated(config, name, content=re.sub(r"\]\(docs/", "](", text)))
    scripts = (Path(__file__).with_name(name).read_text() for name in ("search.js", "iframe-worker.js"))
    files.append(File.generated(config, _SEARCH, content="".join(scripts)))
    return files


def on_page_markdown(markdown: str, page: Page, **_: object) -> str:
    """Lead links to documents of the root to their pages, and show the pictures of diagrams.

    What else lies outside of docs/ is no page: such a link is left out, and its text stays.
    """
    up = "../" * page.file.src_uri.count("/")
    markdown = re.sub(r"(?ms)^```mermaid\n(.*?)^```$", lambda block: _picture(block[1], up), markdown)
    names = "|".join(map(re.escape, _OF_THE_ROOT))
    markdown = re.sub(rf"\]\(((?:\.\./)*)\.\./({names})", r"](\1\2", markdown)
    markdown = re.sub(r"\[([^]]+)\]\((?:\.\./)*(?:hooks|packaging|policies|tests|tools)\b[^)]*\)", r"\1", markdown)
    return "\n".join(_indented_by_four(markdown.split("\n")))


def _picture(source: str, up: str) -> str:
    """Return the picture that tools/diagrams.py has drawn of a diagram."""
    return f"![Diagram]({up}images/diagram-{hashlib.sha256(source.encode()).hexdigest()[:12]}.svg)"


def on_post_page(output: str, page: Page, **_: object) -> str:
    """Take the script that lets search start from the disk out of the site; the theme would fetch it elsewhere."""
    return output.replace(_FETCHED, "../" * page.file.dest_uri.count("/") + _SEARCH)


def on_post_template(output: str, **_: object) -> str:
    """Do the same for the page that says that there is no such page."""
    return output.replace(_FETCHED, f"/{_SEARCH}")


def on_page_content(html: str, **_: object) -> str:
    """Write the pipes in tables' code as they are: Python-Markdown leaves the backslash that GitHub wants before them."""
    return re.sub(r"<code>[^<]*</code>", lambda code: code[0].replace("\\|", "|"), html)


def _indented_by_four(lines: list[str]) -> Iterator[str]:
    """Yield the lines with what belongs to an item of a list indented by four, as Python-Markdown wants it.

    CommonMark, and so GitHub, wants it below the item's text: two or three columns.
    """
    begins: list[int] = []  # of each list that a line is in, the column of its items' text
    fenced, before = False, ""
    for line in lines:
        column = len(line) - len(line.lstrip())
        if line.strip():
            item = None if fenced else re.match(r" *(?:[-*]|\d+\.) +", line)
            if not fenced and (item or not before.strip()):
                while begins and column < begins[-1]:
                    begins.pop()
            depth, inside = len(begins), begins[-1] if begins else 0
            if item and column - inside < 4:
                begins.append(item.end())
            if line.lstrip().startswith("```"):
                fenced = not fenced
            if column >= inside:
                line = " " * (4 * depth) + line[inside:]
        yield line
        before = line
