"""Write a test run's results as a page: `python -m tools.results build/tests.xml >docs/test-results.md`.

The input is pytest's JUnit file (`--junitxml`); the output names what the tests ran on.
"""

from __future__ import annotations

import platform
import subprocess
import sys
from collections import Counter
from xml.etree import ElementTree as ET

from tests.lib.reports import made

PROGRAMS = {  # program and the option that makes it print its version
    "Slurm": ("/usr/sbin/slurmd", "-V"),
    "munge": ("/usr/sbin/munged", "--version"),
    "squashfs-tools": ("/usr/bin/mksquashfs", "-version"),
    "skopeo": ("/usr/bin/skopeo", "--version"),
    "umoci": ("/usr/bin/umoci", "--version"),
}


def page(junit: str) -> str:
    """Return the page for one JUnit file."""
    cases: dict[str, Counter[str]] = {}
    seconds: Counter[str] = Counter()
    for case in ET.parse(junit).getroot().iter("testcase"):
        parts = case.get("classname", "").split(".")  # tests.unit.host.test_files; "" if a file cannot be imported
        folder = parts[1] if len(parts) > 1 else "not collected"
        outcomes = {child.tag for child in case} & {"failure", "error", "skipped"}
        cases.setdefault(folder, Counter())[min(outcomes, default="passed")] += 1
        seconds[folder] += round(float(case.get("time", "0")))
    lines = ["| tests | passed | failed | skipped | seconds |", "|---|---|---|---|---|"]
    for folder, count in sorted(cases.items()):
        failed = count["failure"] + count["error"]
        lines.append(f"| {folder} | {count['passed']} | {failed} | {count['skipped']} | {seconds[folder]} |")
    versions = [f"- {name} {_version(argv)}" for name, argv in PROGRAMS.items()]
    return "\n".join(
        [
            "# Test results",
            "",
            f"The last `make test-all`, {made()}. Seconds are sums over tests that ran at once.",
            "",
            *lines,
            "",
            f"- Python {platform.python_version()}, Linux {platform.release()}, {platform.machine()}",
            *versions,
            "",
        ]
    )


def _version(argv: tuple[str, str]) -> str:
    """Return the first word with a digit that a program prints."""
    try:
        done = subprocess.run(argv, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        return "is not installed"
    words = (done.stdout or done.stderr).partition("\n")[0].split()
    return next((word for word in words if any(letter.isdigit() for letter in word)), "?")


if __name__ == "__main__":
    sys.stdout.write(page(sys.argv[1]))
