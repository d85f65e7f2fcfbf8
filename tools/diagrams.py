"""Draw the documents' mermaid diagrams into docs/images, for the site: `make screenshots`. GitHub draws its own.

A picture is named after its source, so that none can be stale. mermaid comes from the npm registry.
"""

from __future__ import annotations

import hashlib
import html
import json
import re
import subprocess
import tempfile
from pathlib import Path

from tests.support import browser

DOCS = Path(__file__).resolve().parents[1] / "docs"
MERMAID = "mermaid@11.17.2"
BLOCK = re.compile(r"^```mermaid\n(.*?)^```$", re.MULTILINE | re.DOTALL)
PAGE = """\
<!DOCTYPE html><meta charset="utf-8"><script src="{script}"></script><body><script>
mermaid.initialize({{startOnLoad: false, theme: "neutral", htmlLabels: false, flowchart: {{htmlLabels: false}},
                    fontFamily: "system-ui, sans-serif"}});
mermaid.render("{name}", {source}).then(({{svg}}) => {{
    const found = document.createElement("pre"); found.id = "found"; found.textContent = svg;
    document.body.replaceChildren(found);
}});
</script>
"""


def name_of(source: str) -> str:
    """Return the name of a diagram's picture. packaging/site/hooks.py computes the same."""
    return f"diagram-{hashlib.sha256(source.encode()).hexdigest()[:12]}.svg"


def sources() -> dict[str, str]:
    """Return the diagrams of all documents: name of the picture → source."""
    found = (block[1] for path in sorted(DOCS.rglob("*.md")) for block in BLOCK.finditer(path.read_text()))
    return {name_of(source): source for source in found}


def pictures() -> set[str]:
    """Return the names of the pictures that are there."""
    return {path.name for path in (DOCS / "images").glob("diagram-*.svg")}


def main() -> None:
    """Draw what is missing, and remove what no document has any more."""
    wanted = sources()
    for name in pictures() - wanted.keys():
        (DOCS / "images" / name).unlink()
    missing = sorted(wanted.keys() - pictures())
    if not missing:
        return
    with tempfile.TemporaryDirectory() as directory:
        subprocess.run(["npm", "pack", "--silent", MERMAID], cwd=directory, check=True, stdout=subprocess.DEVNULL)
        subprocess.run(["tar", "-xzf", *Path(directory).glob("*.tgz")], cwd=directory, check=True)
        script = Path(directory, "package/dist/mermaid.min.js")
        for name in missing:
            page = Path(directory, "page.html")
            page.write_text(PAGE.format(script=script, name=name.removesuffix(".svg"), source=json.dumps(wanted[name])))
            (DOCS / "images" / name).write_text(_drawn(browser.content(page), wanted[name]))


def _drawn(page: str, source: str) -> str:
    """Return the picture in a page, on white: it has no colours for dark screens. Raises `ValueError`: no picture."""
    found = re.search(r'<pre id="found">(.*?)</pre>', page, re.DOTALL)
    if found is None:
        raise ValueError(f"mermaid cannot draw this:\n{source}")
    return html.unescape(found[1]).replace('style="', 'style="background: white; ', 1) + "\n"


if __name__ == "__main__":
    main()
