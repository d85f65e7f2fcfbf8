"""Parsers of foreign bytes: the list of them is complete, and none fails on what once made one fail."""

from __future__ import annotations

import ast
import marshal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import warmstart
from tests.lib import bare_decoders
from tests.lib.fuzz.inputs import CORPUS
from tests.lib.fuzz.parsers import OF_WINGS, OWN_OF_WINGS, PARSERS, check

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
    "audit/journal.py:Journal.shown_to_job": "lines of this process's own journal",
    "audit/pending.py:shown": "each line is `audit-line`",
    "audit/query.py:_files": "opens the log; each line is `audit-line`",
    "cli/explain.py:explain": "the notices of a view, whose lines are made printable",
    "cli/own.py:OwnLog.lines": "each line is `audit-line`",
    "doctor/finding.py:on_one_line": "the text of an error",
    "doctor/node.py:_unmounted": "/etc/fstab, which is root's",
    "doctor/slurm.py:slurmd_stop": "what systemctl says of slurmd's unit",
    "entry/pyxis_importer.py:_job_tmp": "the view, which is root's; runs as the job's user",
    "entry/pyxis_importer.py:_known": "the view, which is root's; runs as the job's user",
    "errands/imports.py:_killed_for_memory": "the kernel's counts",
    "errands/unpacks.py:unpack": "starts unsquashfs",
    "harvest/live.py:taken": "root's own, in the run's directory; names of entries as in `draft`",
    "host/linux.py:child_in": "a child's errno",
    "host/loops.py:_file_of": "the kernel's answer",
    "host/process.py:CompletedProgram.complaint": "the last line, made printable",
    "host/wire.py:parse": "what all of the others call",
    "hot.py:install": "code that `make install` has written",
    "images/importers/enroot.py:_first_error": "one line of a program's message",
    "images/unpacking.py:_Unpacking._unpack": "lines of a program's message, compared with one form",
    "images/unpacking.py:trees": "root's own file; whatever it is, it is left out",
    "images/user/own_images.py:_offer_credentials": "the user's own lines, passed on to the user's own process",
    "record.py:_sets": "root's own file; whatever it is, it is left out",
    "seed/node_cache.py:_origin": "root's copy on the node; its callers expect any error",
    "seed/node_cache.py:entries_of": "root's copy on the node, of a manifest that was checked",
    "steps/seed.py:_Seeding.extract": "starts unsquashfs",
}


def parsing_functions() -> dict[str, set[str]]:
    """Return the functions that take bytes apart, as module:function, with the calls by which they do."""
    found: dict[str, set[str]] = {}
    for path in sorted(HOOKS.rglob("*.py")):
        for name, call in _calls(ast.parse(path.read_text()), ""):
            if call in PARSING or call.rpartition(".")[2] in PARSING_METHODS:
                found.setdefault(f"{path.relative_to(HOOKS)}:{name}", set()).add(call)
    return found


def _calls(node: ast.AST, name: str) -> Iterator[tuple[str, str]]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Call):
            yield name, ast.unparse(child.func)
        is_named = isinstance(child, ast.FunctionDef | ast.ClassDef)
        yield from _calls(child, f"{name}.{child.name}".lstrip(".") if is_named else name)  # type: ignore[attr-defined]


def test_every_function_that_takes_bytes_apart_is_on_the_list() -> None:
    """A new one is fuzzed, or says above why its bytes are not foreign."""
    covered = {function for parser in PARSERS.values() for function in parser.covers}
    found = parsing_functions().keys()
    assert sorted(found - covered - OWN.keys()) == []
    assert sorted(OWN.keys() - found) == []


def test_the_list_names_functions_that_exist() -> None:
    """One that was renamed is renamed there, too."""
    known = set()
    for path in HOOKS.rglob("*.py"):
        tree = ast.parse(path.read_text())
        tops = [(node.name, node) for node in tree.body if isinstance(node, ast.FunctionDef | ast.ClassDef)]
        names = [name for name, _ in tops]
        names += [
            f"{name}.{below.name}" for name, top in tops for below in top.body if isinstance(below, ast.FunctionDef)
        ]
        known |= {f"{path.relative_to(HOOKS)}:{name}" for name in names}
    assert {function for parser in PARSERS.values() for function in parser.covers} - known == set()


@pytest.mark.parametrize("name", PARSERS)
def test_every_sample_is_taken(name: str) -> None:
    """They are what the parser is made for: changes of anything else would not come far."""
    parser = PARSERS[name]
    for sample in parser.samples:
        parser.parse(sample)


def test_what_once_failed() -> None:
    """`make fuzz` keeps here what it finds."""
    for path in sorted(CORPUS.glob("*/*")):
        check(PARSERS[path.parent.name], path.read_bytes())


# The standard library's own (CPython, Lib/test/test_json: test_fail.py, test_decode.py, test_recursion.py);
# the first and the 18th are JSON, and nothing that is decoded here.
BAD_JSON = [
    '"A JSON payload should be an object or array, not a string."',
    '["Unclosed array"',
    '{unquoted_key: "keys must be quoted"}',
    '["extra comma",]',
    '["double extra comma",,]',
    '[   , "<-- missing value"]',
    '["Comma after the close"],',
    '["Extra close"]]',
    '{"Extra comma": true,}',
    '{"Extra value after close": true} "misplaced quoted value"',
    '{"Illegal expression": 1 + 2}',
    '{"Illegal invocation": alert()}',
    '{"Numbers cannot have leading zeroes": 013}',
    '{"Numbers cannot be hex": 0x14}',
    '["Illegal backslash escape: \\x15"]',
    '[\\naked]',
    '["Illegal backslash escape: \\017"]',
    '[[[[[[[[[[[[[[[[[[[["Too deep"]]]]]]]]]]]]]]]]]]]]',
    '{"Missing colon" null}',
    '{"Double colon":: null}',
    '{"Comma instead of colon", null}',
    '["Colon instead of comma": false]',
    '["Bad value", truth]',
    "['single quote']",
    '["\ttab\tcharacter\tin\tstring\t"]',
    '["tab\\   character\\   in\\  string\\  "]',
    '["line\nbreak"]',
    '["line\\\nbreak"]',
    '[0e]',
    '[0e+]',
    '[0e+-1]',
    '{"Comma instead if closing brace": true,',
    '["mismatch"}',
    '["A\x1fZ control characters in string"]',
    "", " ", "{", '{"spam"', '{"spam":', '{"spam":42', '{"spam":42,', "[", "[42", "[42,", '["', '["spam', '["spam"',
    '["spam",', "[,", '{"spam":[}', "[42:", '[42 "spam"', "[42,]", '{"spam":[42}', '{"spam" ,', '{"spam":,',
    "{,", "1 2", '"', '"spam', '"\\', '"\\u12', '"\\ud800\\', "-", "nul", "Na", "-Infinit", "\ufeff[]", "\0",
]  # fmt: skip
BAD_BYTES = [*(text.encode() for text in BAD_JSON), b"\xff", b'"\xc3', b"[" * 100_000, b'{"":' * 100_000, b"9" * 10_000]


def test_torn_and_bad_json_is_refused_by_a_bare_interpreter_too(tmp_path: Path) -> None:
    """Where nothing has loaded `json`, as pytest has. Torn is each beginning of what a decoder takes."""
    decoding = {"json.loads", "json.load", "loads", "wire.parse"}
    functions = {function for function, calls in parsing_functions().items() if calls & decoding}
    names = {name for name, parser in PARSERS.items() if functions & {*parser.covers}}
    names.remove("metrics")  # the command line's, which has loaded it
    assert names == bare_decoders.DECODERS.keys() | bare_decoders.OF_FILES.keys() | OF_WINGS.keys()
    inputs = {name: BAD_BYTES + [s[:end] for s in PARSERS[name].samples for end in range(len(s))] for name in names}
    ran = subprocess.run(
        [sys.executable, "-IS", bare_decoders.__file__],
        input=marshal.dumps((str(HOOKS.parent), inputs, OF_WINGS)),
        cwd=tmp_path,
        check=True,
        capture_output=True,
        timeout=120,
    )
    refusals = {name: {kind.__name__ for kind in PARSERS[name].refusals} for name in names}
    results = marshal.loads(ran.stdout)
    assert len({name for name, *_ in results}) > len(names) / 4
    assert [
        (name, inputs[name][number][:80], kinds) for name, number, kinds in results if not refusals[name] & {*kinds}
    ] == []
