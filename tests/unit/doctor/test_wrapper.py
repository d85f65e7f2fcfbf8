"""A site's own prolog that runs ours: what loses its status or does not wait, and what is fine."""

from __future__ import annotations

from pathlib import Path

import pytest

from warmstart.doctor.wrapper import BACKGROUND, LOST, mistake

HOOK = "/usr/libexec/warmstart/prolog"
FINE = (
    "H",
    "exec H",
    "H || exit $?\ntouch /run/x",
    "set -e\nH\ntouch /run/x",
    "set -eu\nmount /scratch\nH",
    "H\nstatus=$?\nlogger done\nexit $status",
    "H >/var/log/hooks.log 2>&1",
    "H &>/dev/null",
    "if ! H; then\n    exit 1\nfi\ntouch /run/x",
    "hook=H\n[ -x H ] && H\n",
    "hook=H\nif [ -x $hook ]; then\n    $hook\nfi",
    'result=$(H) || exit 1\necho "$result"',
    "# H &\nexec H  # not in the background &",
    "set -o pipefail\nH | logger",
    "{\n    H\n}",
)
WRONG = {
    "H &": BACKGROUND,
    "H >/dev/null 2>&1 &\nexit 0": BACKGROUND,
    "nohup H\n": BACKGROUND,
    "(H &)\n": BACKGROUND,
    "hook=H\n$hook &\nwait_for_disk": BACKGROUND,
    "H || true": LOST,
    "H || logger failed": LOST,
    "H || :\ntouch /run/x": LOST,
    "H; true": LOST,
    "H\nexit 0": LOST,
    "H\ntouch /run/x": LOST,
    "H | logger": LOST,
    'hook="H"\n"${hook}"\ntouch /run/x': LOST,
    "if true; then\n    H\nfi\nexit 0": LOST,
}


def wrapper(tmp_path: Path, body: str, first: str = "#!/bin/sh") -> str:
    """Return the path of a script."""
    path = tmp_path / "prolog"
    path.write_text(f"{first}\n{body}\n".replace("H", HOOK))
    return str(path)


@pytest.mark.parametrize("body", FINE)
def test_what_is_fine(tmp_path: Path, body: str) -> None:
    """Slurm waits, and learns the status."""
    assert mistake(wrapper(tmp_path, body), HOOK) == ""


@pytest.mark.parametrize(("body", "what"), WRONG.items())
def test_what_is_not(tmp_path: Path, body: str, what: str) -> None:
    """Jobs start too early, or a broken node is not drained."""
    assert mistake(wrapper(tmp_path, body), HOOK) == what


def test_other_languages_are_believed(tmp_path: Path) -> None:
    """And a shell that stops by its first line."""
    assert mistake(wrapper(tmp_path, "call(H); go_on()", "#!/usr/bin/python3"), HOOK) == ""
    assert mistake(wrapper(tmp_path, "H\ntouch /run/x", "#!/bin/sh -e"), HOOK) == ""
    assert mistake(wrapper(tmp_path, "H\ntouch /run/x", "#!/bin/bash"), HOOK) == LOST
