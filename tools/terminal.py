"""Write docs/reference/terminal.md, what the commands print after the jobs of the demo, and docs/images/demo.svg."""

from __future__ import annotations

import fcntl
import io
import os
import pty
import re
import struct
import subprocess
import termios
from pathlib import Path

from rich.console import Console

from tests.lib.cluster import Cluster
from tests.lib.registry import Registry
from tools.demo.__main__ import Demo, Row, show

PAGE = Path(__file__).resolve().parents[1] / "docs" / "reference" / "terminal.md"
PICTURE = Path(__file__).resolve().parents[1] / "docs" / "images" / "demo.svg"
COLUMNS, LINES = 80, 50
STYLE = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
HEAD = """\
# What the commands print

Made by `make screenshots`: a terminal of 80 columns, after the jobs of `make demo`, on a node of its cluster.
"""


def captured(argv: list[str]) -> str:
    """Return what a command prints on a terminal, without styles; every line fits it."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", LINES, COLUMNS, 0, 0))
    with subprocess.Popen(argv, stdin=theirs, stdout=theirs, stderr=theirs, env={"TERM": "xterm"}):
        os.close(theirs)
        printed = b""
        while True:
            try:
                chunk = os.read(ours, 65536)
            except OSError:  # the last one has closed the terminal
                break
            if not chunk:
                break
            printed += chunk
    os.close(ours)
    if b"Traceback" in printed or b"Usage:" in printed:  # an exit status may be a finding's
        raise RuntimeError(f"{argv}: {printed.decode()}")
    text = STYLE.sub("", printed.decode()).replace("\r\n", "\n").rstrip("\n")
    lines = [line.rpartition("\r")[2] for line in text.split("\n")]  # what a spinner wrote is gone
    too_wide = [line for line in lines if len(line) > COLUMNS]
    if too_wide:
        raise RuntimeError(f"{argv}: wider than {COLUMNS} columns: {too_wide}")
    return "\n".join(lines)


def main() -> None:
    """Run the demo's jobs, and every command after them."""
    with Cluster() as cluster, Registry(cluster.base) as registry:
        demo = Demo(cluster, registry, print)
        rows = demo.run()
        PICTURE.write_text(drawn(rows, demo.claims(rows)))
        last = rows[-1].job.partition(" ")[0]
        program = str(cluster.prefix / "bin" / "warmstart")
        commands = [
            ["explain", last],
            ["report"],
        ]
        sections = []
        for command in commands:
            text = captured([program, *command]).replace(str(cluster.base), "/cluster")
            sections.append(f"## {command[0]}\n\n    $ warmstart {' '.join(command)}\n" + _indented(text))
    PAGE.write_text(HEAD + "\n" + "\n".join(sections))


def drawn(rows: list[Row], claims: dict[str, bool]) -> str:
    """Return what `make demo` prints as a picture in SVG, in whatever monospaced font the reader has."""
    console = Console(record=True, width=COLUMNS, file=io.StringIO(), force_terminal=True)
    console.print("$ make demo", style="bold")
    show(console, rows, claims)
    return re.sub(
        r"@font-face \{.*?\}\s*", "", console.export_svg(title="make demo", unique_id="demo"), flags=re.DOTALL
    )


def _indented(text: str) -> str:
    return "".join(f"    {line}".rstrip() + "\n" for line in text.split("\n"))


if __name__ == "__main__":
    main()
