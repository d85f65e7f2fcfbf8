"""Any name that a file system holds, on its way from a job's cache to another job's: real squashfs, overlay, uids."""

from __future__ import annotations

import os
import shutil
import tempfile
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.lib.bundles import memory_file
from tests.lib.collecting import collected
from tests.lib.overlay_place import JOB, Node, a_node, content
from warmstart.caches.store import bundles
from warmstart.caches.store.bundles import Draft
from warmstart.caches.store.layout import File, Namespace
from warmstart.host.deadline import after
from warmstart.host.files import opened_dir
from warmstart.seed.extract import Source, extract
from warmstart.store.layout import is_plain_path

pytestmark = pytest.mark.usefixtures("capable_host")

ODD = [
    " lead", "trail ", "#a", "\\", "\\a", "a\\", "my project", "x=1,seed=2", "proj@v1", "[exp]", "*", "a?", "-rf",
    *(
        "Ünï",
        "größe",
        "Δt",
        "\udcff",
        "gr\udcf6\udcdfe",
        "ñ" * 127,
        "'\"$;",
        "~",
        ":",
        "...",
        "\u202e",
        "a,b:c",
        "\u2028",
    ),
]  # fmt: skip
NAMES = st.one_of(
    st.sampled_from(ODD),
    st.text(min_size=1, max_size=20),
    st.binary(min_size=1, max_size=30).map(lambda raw: raw.decode("utf-8", "surrogateescape")),
).filter(lambda name: "/" not in name and is_plain_path(name))
SOME_PATHS = st.tuples(st.sets(NAMES, min_size=2, max_size=12), st.sets(NAMES, min_size=1, max_size=4)).map(
    lambda drawn: sorted(drawn[0] - drawn[1]) + [f"{folder}/{name}" for folder in drawn[1] for name in drawn[0]]
)
FEW = settings(max_examples=12, deadline=None)


@pytest.fixture(scope="module")
def node(capable_host: None) -> Iterator[Node]:
    """Give a node for the module."""
    with a_node() as made:
        yield made


def made_of(paths: list[str]) -> dict[str, bytes]:
    """Return a content for each path that tells it from the others."""
    return {path: os.fsencode(path) for path in paths}


@FEW
@given(SOME_PATHS, st.data())
def test_every_name_is_seen_hidden_and_extracted(node: Node, paths: list[str], data: st.DataObject) -> None:
    files = made_of(paths)
    chosen = data.draw(st.sets(st.sampled_from(paths), min_size=1))
    copy = node.bundle(files)
    run = node.run(uuid.uuid4().hex)
    try:
        run.show(copy, hidden=sorted(chosen))
        assert content(run.cache) == {path: found for path, found in files.items() if path not in chosen}
    finally:
        run.take_down()
    into = Path(tempfile.mkdtemp(dir=node.base))
    os.chown(into, JOB.uid, JOB.gid)
    with opened_dir(str(into)) as fd:
        extract([Source(copy.path, sorted(chosen))], fd, "some", JOB, JOB.uid, after(30))
        extract([Source(copy.path, None)], fd, "all", JOB, JOB.uid, after(30))
    assert content(into / "some") == {path: files[path] for path in chosen}
    assert content(into / "all") == files
    shutil.rmtree(into)


@FEW
@given(SOME_PATHS)
def test_every_name_is_harvested_and_written_down(node: Node, paths: list[str]) -> None:
    top = Path(tempfile.mkdtemp(dir=node.base))
    for path, data in made_of(paths).items():
        (top / "cache" / path).parent.mkdir(parents=True, exist_ok=True)
        (top / "cache" / path).write_bytes(data)
    got = collected(top / "cache", top / "stage")
    assert (got.found.rejected.counts, got.found.ignored.counts, got.truncated) == ({}, {}, "")
    assert content(top / "stage") == made_of(paths)
    entries = {entry: {path: File(*file) for path, file in files.items()} for entry, files in got.entries.items()}
    where = Namespace(str(top), "user-1", "numba", "ns")
    with memory_file(b"squashfs") as fd:
        row = bundles.put(where, "n1", fd, Draft("a", 1, 7, entries), 0)
    assert bundles.entries(where, row.sha256) == entries
    assert {path for files in got.entries.values() for path in files} == set(paths)
    shutil.rmtree(top)


@given(st.text())
def test_a_text_that_is_no_name_is_refused(text: str) -> None:
    """A list of another cluster can't have two texts for one file, or one that is no file's."""
    try:
        same = os.fsdecode(os.fsencode(text)) == text
    except UnicodeEncodeError:
        same = False
    entries = {text: {text: File(1, "ab" * 32, 1)}}
    if is_plain_path(text):
        assert same
        assert bundles.checked_entries(entries) == entries
    else:
        with pytest.raises(ValueError, match="names of files"):
            bundles.checked_entries(entries)
