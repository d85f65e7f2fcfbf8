"""Parsers of foreign bytes: the list of them is complete, and none fails on what once made one fail."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import warmstart
from tests.lib.fuzz.inputs import CORPUS
from tests.lib.fuzz.parsers import OWN_OF_WINGS, PARSERS, check

HOOKS = Path(warmstart.__file__).parent
# Calls that take bytes or text apart.
PARSING = (
    "json.loads", "json.load", "loads", "wire.parse", "tarfile.open", "gzip.GzipFile", "base64.b64decode",
    "int.from_bytes", "zlib.decompressobj", "yaml.compose",
)  # fmt: skip
PARSING_METHODS = ("unpack", "unpack_from", "iter_unpack", "splitlines")
# Functions that take apart what this process, or root alone, made just before, or that pass lines on as they are.
OWN = {
    "entry/pyxis_importer.py:_has_profiles": "root's view of the job, read by the job's user; any bytes are text",
    **OWN_OF_WINGS,
    "audit/query.py:_files": "opens the log; each line is `audit-line`",
    "cli/own.py:OwnLog.lines": "each line is `audit-line`",
    "doctor/finding.py:on_one_line": "the text of an error",
    "doctor/node.py:_unmounted": "/etc/fstab, which is root's",
    "doctor/slurm.py:_slurmd_stop": "what systemctl says of slurmd's unit",
    "entry/pyxis_importer.py:_job_tmp": "the view, which is root's; runs as the job's user",
    "entry/pyxis_importer.py:_known": "the view, which is root's; runs as the job's user",
    "attempts/imports.py:_killed_for_memory": "the kernel's counts",
    "attempts/unpacks.py:attempt": "starts unsquashfs",
    "host/linux.py:child_in": "a child's errno",
    "host/loops.py:_file_of": "the kernel's answer",
    "host/process.py:CompletedProgram.complaint": "the last line, made printable",
    "host/wire.py:parse": "what all of the others call",
    "hot.py:install": "code that `make install` has written",
    "images/importers/enroot.py:_first_error": "one line of a program's message",
    "images/unpacking.py:_Unpacking._unpack": "lines of a program's message, compared with one form",
    "images/unpacking.py:trees": "root's own file; whatever it is, it is left out",
    "images/user/own_images.py:_offer_credentials": "the user's own lines, passed on to the user's own process",
    "policy/types.py:as_json": "a policy that this process has checked",
    "seed/eviction.py:_place": "root's own file beside a copy; whatever it is, it is left out",
    "steps/seed.py:_Seeding._extract": "starts unsquashfs",
    "seed/copies.py:entries_of": "root's own file beside a copy, of a list that was checked",
}


def parsing_functions() -> set[str]:
    """Return the functions that take bytes apart, as module:function."""
    return {
        f"{path.relative_to(HOOKS)}:{name}"
        for path in HOOKS.rglob("*.py")
        for name, call in _calls(ast.parse(path.read_text()), "")
        if call in PARSING or call.rpartition(".")[2] in PARSING_METHODS
    }


def _calls(node: ast.AST, name: str) -> Iterator[tuple[str, str]]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Call):
            yield name, ast.unparse(child.func)
        is_named = isinstance(child, ast.FunctionDef | ast.ClassDef)
        yield from _calls(child, f"{name}.{child.name}".lstrip(".") if is_named else name)  # type: ignore[attr-defined]


def test_every_function_that_takes_bytes_apart_is_on_the_list() -> None:
    """A new one is fuzzed, or says above why its bytes are not foreign."""
    covered = {function for parser in PARSERS.values() for function in parser.covers}
    found = parsing_functions()
    assert sorted(found - covered - OWN.keys()) == []
    assert sorted(OWN.keys() - found) == []


@pytest.mark.parametrize("name", PARSERS)
def test_every_sample_is_taken(name: str) -> None:
    parser = PARSERS[name]
    for sample in parser.samples:
        parser.parse(sample)


def test_what_once_failed() -> None:
    for path in sorted(CORPUS.glob("*/*")):
        check(PARSERS[path.parent.name], path.read_bytes())
