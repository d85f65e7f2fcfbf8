"""What a site's own prolog or epilog does with the hook that it runs: whether Slurm waits for it and learns its status.

The script is read and not run, and a shell's grammar is not parsed: what is not plainly a mistake is believed.
"""

from __future__ import annotations

import re

from warmstart.host.files import read_small

LARGEST_SCRIPT = 1 << 20
BACKGROUND = "starts it in the background: jobs start before it has ended"
LOST = "loses its exit status"
_SHELL = re.compile(r"#!.*\b(ba|da|k|z)?sh\b")
_CLOSING = re.compile(r"(fi|done|esac|;;|\}|\))+;?")
_KEPT = re.compile(r"\bexec\b|\|\|\s*(exit|return|\{|\()|&&|\$\?|^(if|while|until|trap|!)\b|^return\b|=")
_DROPPED = re.compile(r"\|\|(?!\s*(exit|return|\{|\())|;\s*(true|:|exit\s+0)\s*$")
_PIPE = re.compile(r"(?<![|>&])\|(?![|&])")


def mistake(path: str, hook: str) -> str:
    """Return what a script does wrong with a hook that it names, "" if nothing is plainly wrong or it is no script."""
    text = read_small(path, LARGEST_SCRIPT).decode("utf-8", "replace")
    if not _SHELL.match(text):
        return ""
    lines = [line for raw in text.replace("\\\n", " ").splitlines() if (line := _code(raw))]
    called = [hook, *(f"${name}" for name in _names(lines, hook)), *(f"${{{name}}}" for name in _names(lines, hook))]
    calls = [
        number
        for number, line in enumerate(lines)
        if any(name in line for name in called) and not re.match(r"\w+=\S*$|(\[|test)\s", line)
    ]
    if not calls:
        return ""
    last = calls[-1]
    stops = bool(re.search(r"^\s*set\s+-\w*e|^#!.*\s-\w*e", text, re.MULTILINE))
    rest = [line for line in lines[last + 1 :] if not _CLOSING.fullmatch(line)]
    return _of_call(lines[last], rest, stops=stops, piped="pipefail" in text)


def _of_call(line: str, rest: list[str], *, stops: bool, piped: bool) -> str:
    """Return the mistake of one call: `rest` are the lines after it, `stops` is `set -e`, `piped` is `pipefail`."""
    if re.search(r"(?<![&>])&\s*(\)|;|$)|\b(nohup|setsid)\b", line):
        return BACKGROUND
    if _DROPPED.search(line) or (_PIPE.search(line) and not piped):
        return LOST
    if _KEPT.search(line) or stops or not rest or "$?" in rest[0]:
        return ""
    return LOST


def _names(lines: list[str], hook: str) -> list[str]:
    """Return the variables that hold the hook's path."""
    found = (re.match(rf"(?:readonly\s+)?(\w+)=[\"']?{re.escape(hook)}[\"']?$", line) for line in lines)
    return [match[1] for match in found if match]


def _code(raw: str) -> str:
    return re.sub(r"(^|\s)#.*", "", raw).strip()
