"""Draw what `make demo` prints: docs/images/demo.svg, which README shows. `make screenshots` runs this."""

from __future__ import annotations

import io
import re
from pathlib import Path

from rich.console import Console

from tests.lib.cluster import Cluster
from tests.lib.registry import Registry
from tools.demo.__main__ import WIDTH, Demo, an_image, show

PICTURE = Path(__file__).resolve().parents[1] / "docs" / "images" / "demo.svg"
_FONT = re.compile(r"@font-face \{.*?\}\s*", re.DOTALL)  # without it a reader's own monospaced font is taken


def main() -> None:
    """Run the demo's jobs, and write the picture."""
    with Cluster() as cluster, Registry(cluster.base) as registry:
        demo = Demo(cluster, registry, lambda: an_image(cluster.base / "image"), print)
        rows = demo.run()
        console = Console(record=True, width=WIDTH, file=io.StringIO(), force_terminal=True)
        console.print("$ make demo", style="bold")
        show(console, rows, demo.claims(rows))
    PICTURE.write_text(_FONT.sub("", console.export_svg(title="make demo", unique_id="demo")))


if __name__ == "__main__":
    main()
