"""What mkdocs does besides mkdocs.yml: documents of the root become pages, and all decisions are in the navigation."""

from __future__ import annotations

import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

_OF_THE_ROOT = ("CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md")


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Fill the navigation's last part, Decisions, with docs/adr."""
    pages = sorted(f"adr/{path.name}" for path in Path(config.docs_dir, "adr").glob("*.md"))
    config.nav[-1]["Internals"][-1]["Decisions"] = pages
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the documents that lie beside docs/; in their links docs/ is left out."""
    for name in _OF_THE_ROOT:
        text = Path(config.docs_dir).parent.joinpath(name).read_text()
        text = re.sub(r"\]\(docs/adr/\)", "](adr/0001-libraries-not-a-venv.md)", text)
        files.append(File.generated(config, name, content=re.sub(r"\]\(docs/", "](", text)))
    return files


def on_page_markdown(markdown: str, **_: object) -> str:
    """Lead links to documents of the root to their pages."""
    names = "|".join(map(re.escape, _OF_THE_ROOT))
    return re.sub(rf"\]\(((?:\.\./)*)\.\./({names})", r"](\1\2", markdown)
