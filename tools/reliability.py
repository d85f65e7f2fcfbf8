"""Write what warmstart promises when things fail, and what the last sweeps showed.

    python -m tools.reliability

writes docs/reliability.md, and build/reliability-calls.md with a row for each call site. The figures are what the
sweeps left in build/reliability: a JSON file of each sweep of hooks and of `make fuzz`, and Markdown fragments of other
suites, which are taken as they are. Figures of which nothing is there stay as they are on the page, with their date.
`PROMISES` is the rest; a unit test holds that each of its tests exists.
"""

from __future__ import annotations

import json
import re
import textwrap
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from tests.lib.hook_site import HOOKS
from tests.lib.reports import REPORTS, ROOT

INTRO = """\
# Reliability

What holds when a disk, a file system, a process or a neighbour fails, and the tests that show it. `make test-all` and
`make fuzz` write this page, and what each error and each kill did, call by call, into `build/reliability-calls.md`.
"""
ERRORS_INTRO = """\
What became of each error. *None*: the hook did its work; *told*: an event or a message names the error, and the job
ran; *verdict*: the job failed with a reason, for its image. *Left*: something of the job was left when the hook had run
again; maintenance removed all of it.
"""
KILLS_INTRO = """\
SIGKILL before each call that changes something, then the same hook, then maintenance.
"""
ORDERS_INTRO = """\
Pairs of operations on the store in all orders with up to two switches. Locks do nothing, the second one's clock is half
an hour behind, and once it may have an old view. Readers must see what they could see if one came after the other.
"""
CALLS_INTRO = """\
# Reliability, call by call

What the last sweeps did to each call of each hook, and what came of it. `make test-all` writes this page; a summary and
the promises are in docs/reliability.md.

The *part* of the installation is where the call's file is; *kernel* is what is about no file, or one in `/proc` or
`/dev`. *In* is the function that calls, after `<` who called it. Calls are in the order in which the hook makes them.
"""
CALLS_ERRORS = """\
A column for each error that a call may have by its man page, or on a network file system. *None*: the hook did its
work; *told*: an event or a message names the error, and the job ran, cold or without the part; *verdict*: the job
failed with a reason; *drained*: the node was drained; blank: the call has no such error there. The last column has the
codes (docs/reference/errors.md) of the events. `+`: something of the job was left when the hook had run again, and
maintenance removed it.
"""
CALLS_KILLS = """\
SIGKILL on the way into the call, so that its change did not happen; then the same hook again. *Left* is what was there
then; *removed by* is what removed it. Blank: nothing was left. A call that a hook makes several times was killed each
time.
"""

MADE = "Made on "  # begins the figures of a section
# What other suites write: title of the section, names of their files.
OTHERS = {
    "Two at once": "orders-*.md",
    "On GlusterFS": "glusterfs.md",
    "Load": "load.md",
    "Hostile images": "hostile.md",
}
INTROS = {"Two at once": ORDERS_INTRO}


class Promise(NamedTuple):
    """One promise, and the tests that hold it: paths below tests, with the function."""

    text: str
    tests: tuple[str, ...]


PROMISES = (
    Promise(
        "An error at any call of a hook ends as the right kind of fault. Only errors of the node's own disks (EIO, "
        "EROFS) drain it; what users can use up never does, nor does anything in the store. No such error hangs a "
        "hook, or leaves a job with half of its preparation.",
        ("sweeps/test_hook_sweeps.py::test_an_error_at_every_call_site",),
    ),
    Promise(
        "A hook, a background import or maintenance may be killed before any call that changes something: readers of "
        "the store see whole bundles and images only.",
        (
            "sweeps/test_hook_sweeps.py::test_a_hook_killed_before_every_change",
            "crash/test_task_prolog_sweep.py::test_no_link_costs_the_constant_path_only",
            "crash/test_image_kill_sweep.py::test_killed_at_every_step",
            "crash/test_store_kill_sweep.py::test_a_compaction_killed_at_any_step",
            "crash/test_supersede_kill_sweep.py::test_a_replacement_killed_at_any_step",
        ),
    ),
    Promise(
        "Two processes that work in the store at once, in whatever order and without locks, lose nothing that was "
        "promised and bring nothing back that was superseded; readers see whole bundles and images.",
        (
            "sweeps/test_interleavings.py::test_all_orders",
            "sweeps/test_interleavings.py::test_a_mistake_is_found_when_it_is_put_back",
        ),
    ),
    Promise(
        "What a failed or killed hook leaves, the same hook removes when it runs again, or maintenance does: mounts, "
        "loop devices, workspaces, records, ports, temporary files.",
        (
            "sweeps/test_hook_sweeps.py::test_an_error_at_every_call_site",
            "sweeps/test_hook_sweeps.py::test_a_hook_killed_before_every_change",
            "crash/test_overlay_kill_sweep.py::test_an_epilog_killed_at_any_step",
            "crash/test_maintenance_kill_sweep.py::test_finishing_killed_on_the_way",
        ),
    ),
    Promise(
        "No fault of one job's hook touches what belongs to another job, user or bundle.",
        (
            "sweeps/test_hook_sweeps.py::test_an_error_at_every_call_site",
            "sweeps/test_hook_sweeps.py::test_a_hook_killed_before_every_change",
        ),
    ),
    Promise(
        "A bundle that the store does not take stays on the node until it does, and keeps no other bundle there.",
        (
            "unit/harvest/test_spool.py::test_a_bundle_that_is_refused_keeps_no_other",
            "crash/test_store_kill_sweep.py::test_a_delivery_killed_at_any_step",
        ),
    ),
    Promise(
        "A job whose image is in the store gets it while the store is full or read-only, and while the registry is "
        "silent or answers nonsense. Whoever names a digest gets that image or none.",
        (
            "integration/test_known_digest.py::test_nonsense_leaves_the_last_image",
            "integration/test_known_digest.py::test_who_names_a_digest_gets_that_or_nothing",
            "integration/test_known_digest_slurm.py",
        ),
    ),
    Promise(
        "On a full state disk jobs get what they ask for, or are told; events go to the reserve, then to syslog.",
        (
            "integration/test_full_state.py::test_a_job_gets_its_image_on_a_full_disk",
            "integration/test_full_state.py::test_a_job_without_its_image_fails_and_one_without_its_cache_is_told",
            "unit/audit/test_fallback.py",
        ),
    ),
    Promise(
        "An index that cannot be read makes no job cold while the manifests can be read, and no other namespace.",
        ("integration/test_unreadable_store.py",),
    ),
    Promise(
        "A warm job's hooks cost the same beside more images, bundles, jobs and lines of the audit log; maintenance of "
        "the store takes no more memory for more bundles.",
        ("sweeps/test_growth.py",),
    ),
    Promise(
        "Bytes that another account, program or machine wrote are taken or refused, whatever they are, in bounded "
        "time.",
        (
            "unit/test_foreign_bytes.py::test_every_function_that_takes_bytes_apart_is_on_the_list",
            "unit/test_foreign_bytes.py::test_what_once_failed",
        ),
    ),
)


def page(reports: Path, before: str = "") -> str:
    """Return the page for the reports in a directory; `before` is the page that was, for figures that they lack."""
    sections = {
        "Errors at every call site": (ERRORS_INTRO, _tables(_read(reports, "errors"), _errors)),
        "Killed before every change": (KILLS_INTRO, _tables(_read(reports, "kills"), _kills)),
        "Foreign bytes": ("", _tables(_fuzzed(reports), _fuzz)),
        **{title: (INTROS.get(title, ""), _fragments(sorted(reports.glob(names)))) for title, names in OTHERS.items()},
    }
    parts = [INTRO, "## Promises\n", *_promises()]
    for title, (intro, figures) in sections.items():
        parts += [f"\n## {title}\n", *([intro] if intro else []), figures or _figures_of(before, title) or "Not run."]
    return "\n".join(parts) + "\n"


def _figures_of(page: str, title: str) -> str:
    """Return the figures of a section of the page, "" if it has none."""
    section = page.partition(f"\n## {title}\n")[2].partition("\n## ")[0]
    return "".join(section.partition(MADE)[1:]).rstrip("\n")


def _tables(found: Mapping[str, Any], tables: Callable[[Mapping[str, Any]], Iterable[str]]) -> str:
    """Return what sweeps have found, "" if none was run."""
    return "\n".join([_made(report["made"] for report in found.values()), *tables(found)]) if found else ""


def _fragments(paths: Iterable[Path]) -> str:
    """Return what other suites report, "" if none was run. Their first lines say when they were made."""
    fragments = [path.read_text().split("\n", 1) for path in paths]
    texts = [_wrapped(text) for _, text in fragments]
    return "\n\n".join([_made(made for made, _ in fragments).rstrip("\n"), *texts]) if texts else ""


def _made(stamps: Iterable[str]) -> str:
    return f"{MADE}{'; '.join(dict.fromkeys(stamps))}.\n"


def calls_page(reports: Path) -> str:
    """Return the page with a row for each call site, for the reports in a directory."""
    parts = [CALLS_INTRO, "## Errors\n", CALLS_ERRORS]
    for hook, report in _read(reports, "errors").items():
        parts += [f"### Errors: {hook}\n", *_errors_by_call(report["outcomes"]), ""]
    parts += ["## Kills\n", CALLS_KILLS]
    for hook, report in _read(reports, "kills").items():
        parts += [f"### Kills: {hook}\n", *_kills_by_call(report["outcomes"]), ""]
    return "\n".join(parts).rstrip("\n") + "\n"


Row = tuple[str, str, str]


def _by_call(outcomes: Iterable[Any]) -> dict[Row, list[Any]]:
    """Group outcomes by part, call and function, without the numbers of lines: these change with every release."""
    rows: dict[Row, list[Any]] = {}
    for one in outcomes:
        where = re.sub(r":\d+\b", "", one["where"])
        rows.setdefault((one["domain"], f"`{one['call']}`", f"`{where}`"), []).append(one)
    return rows


def _errors_by_call(outcomes: Iterable[Any]) -> Iterable[str]:
    rows = _by_call(outcomes)
    errors = sorted({one["error"] for found in rows.values() for one in found})
    yield f"| part | call | in | {' | '.join(errors)} | codes |"
    yield "|---" * (len(errors) + 4) + "|"
    for row, found in rows.items():
        cells = [
            _unique(_kind(one["outcome"]) + "+" * bool(one["left"]) for one in found if one["error"] == error)
            for error in errors
        ]
        codes = _unique(code for one in found for code in re.findall(r"([a-z-]+) \([a-z]+\)", one["outcome"]))
        yield f"| {' | '.join((*row, *cells, codes))} |"


def _kills_by_call(outcomes: Iterable[Any]) -> Iterable[str]:
    yield "| part | call | in | kills | left | removed by |"
    yield "|---|---|---|---|---|---|"
    for row, found in _by_call(outcomes).items():
        left = _unique(_nameless(text) for one in found for text in one["left"])
        removed_by = _unique(one["repaired"] for one in found if one["repaired"])
        yield f"| {' | '.join((*row, str(len(found)), left, removed_by))} |"


def _nameless(problem: str) -> str:
    """Return what was left without what differs from run to run: hashes, numbers, times."""
    return re.sub(r"(?:(?:[0-9a-f]{8,}|\d[\dTZ]{2,})[-.]?)+", "…", problem)


def _unique(texts: Iterable[str]) -> str:
    return ", ".join(dict.fromkeys(texts))


def _wrapped(fragment: str) -> str:
    """Return what another suite reports, with its lines of prose wrapped."""
    lines = [
        line
        if line.startswith("|")
        else textwrap.fill(line, 120, subsequent_indent="  " if line.startswith("- ") else "")
        for line in fragment.strip().splitlines()
    ]
    return "\n".join(lines)


def _promises() -> Iterable[str]:
    yield "| promise | held by |"
    yield "|---|---|"
    for promise in PROMISES:
        yield f"| {promise.text} | {', '.join(f'`{test}`' for test in promise.tests)} |"


def _read(reports: Path, kind: str) -> dict[str, Any]:
    paths = {hook: reports / f"{kind}-{hook}.json" for hook in HOOKS}
    return {hook: json.loads(path.read_text()) for hook, path in paths.items() if path.exists()}


def _errors(found: Mapping[str, Any]) -> Iterable[str]:
    yield "| hook | call sites | errors | of | none | told | verdict | drained | left |"
    yield "|---|---|---|---|---|---|---|---|---|"
    for hook, report in found.items():
        outcomes = report["outcomes"]
        sites = {(one["call"], one["where"], one["domain"]) for one in outcomes}
        counts = Counter(_kind(one["outcome"]) for one in outcomes)
        left = sum(bool(one["left"]) for one in outcomes)
        figures = (len(sites), len(outcomes), report["cases"], *(counts[kind] for kind in _KINDS), left)
        yield f"| {hook} | {' | '.join(map(str, figures))} |"
    yield "\nBy part of the site, all hooks together, and by which errors nodes were drained.\n"
    yield "| part | none | told | verdict | drained |"
    yield "|---|---|---|---|---|"
    everything = [one for report in found.values() for one in report["outcomes"]]
    for part in sorted({one["domain"] for one in everything}):
        chosen = [one for one in everything if one["domain"] == part]
        counts = Counter(_kind(one["outcome"]) for one in chosen)
        drained = sorted({one["error"] for one in chosen if _kind(one["outcome"]) == "drained"})
        by = f" ({', '.join(drained)})" if drained else ""
        yield f"| {part} | {' | '.join(str(counts[kind]) for kind in _KINDS)}{by} |"


_KINDS = ("none", "told", "verdict", "drained")


def _kind(outcome: str) -> str:
    if outcome == "none":
        return "none"
    return "drained" if "drains" in outcome else "verdict" if "job-refused" in outcome else "told"


def _kills(found: Mapping[str, Any]) -> Iterable[str]:
    yield "| hook | calls that change something | kills | left, then removed by maintenance |"
    yield "|---|---|---|---|"
    for hook, report in found.items():
        left = sum(bool(one["left"]) for one in report["outcomes"])
        yield f"| {hook} | {report['cases']} | {len(report['outcomes'])} | {left} |"


def _fuzzed(reports: Path) -> dict[str, Any]:
    path = reports / "fuzz.json"
    return {"fuzz": json.loads(path.read_text())} if path.exists() else {}


def _fuzz(found: Mapping[str, Any]) -> Iterable[str]:
    done = found["fuzz"]["outcomes"]
    inputs, seconds = (sum(one[key] for one in done) for key in ("inputs", "seconds"))
    failed = ", ".join(f"{one['parser']} ({one['found']})" for one in done if one["found"])
    yield f"{len(done)} parsers, {inputs:,} inputs in {seconds} s. Failed: {failed or 'none'}."


def main() -> None:
    """Write both pages."""
    path = ROOT / "docs" / "reliability.md"
    path.write_text(page(REPORTS, path.read_text()))
    REPORTS.mkdir(parents=True, exist_ok=True)
    (REPORTS.parent / "reliability-calls.md").write_text(calls_page(REPORTS))


if __name__ == "__main__":
    main()
