"""What is done under the job's uid; here that is our own, in a process of its own all the same."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.lib.alone import run_alone
from tests.lib.packed import MTIME_NS, packed
from warmstart.host import process
from warmstart.host.deadline import after
from warmstart.host.files import opened_dir
from warmstart.host.identity import Identity
from warmstart.seed.client import JobClient
from warmstart.seed.extract import ExtractionFailed
from warmstart.seed.node_cache import Copy
from warmstart.store.bundles import BundleDamaged, Offer
from warmstart.store.manifest import File

ME = Identity("me", os.getuid(), os.getgid())
SHA256 = "ab" * 32
ENTRIES = {"e": {"m/a.1": b"one", "m/a.2": b"two"}, "f": {"f.1": b"three"}}


@pytest.fixture
def cache(tmp_path: Path) -> Iterator[int]:
    """Give a job's cache."""
    (tmp_path / "cache").mkdir()
    with opened_dir(str(tmp_path / "cache")) as fd:
        yield fd


@pytest.fixture
def copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Copy:
    """Give this node's copy of a bundle with two entries; programs run as they are."""
    monkeypatch.setattr(process, "run_alone", run_alone)
    (tmp_path / "bundles").mkdir()
    made = Copy(offer([]), str(tmp_path / "bundles"))
    fd = packed(tmp_path, ENTRIES)
    Path(made.path).write_bytes(os.pread(fd, 1 << 20, 0))
    os.close(fd)
    listed = {entry: dict.fromkeys(files, File(1, SHA256, MTIME_NS)) for entry, files in ENTRIES.items()}
    Path(made.directory, f"{SHA256}.files.json").write_text(json.dumps(listed))
    return made


def offer(entries: list[str], *, whole: bool = False) -> Offer:
    """Return an offer of these entries."""
    return Offer("user-1", "20260101T000000.000000Z-abababababababab", SHA256, 1, entries, whole)


@pytest.mark.parametrize(
    ("entries", "files"), [(["e"], {"m/a.1": b"one", "m/a.2": b"two"}), (["f"], {"f.1": b"three"})]
)
def test_what_is_offered_is_unpacked_with_its_times(
    copy: Copy, cache: int, tmp_path: Path, entries: list[str], files: dict[str, bytes]
) -> None:
    """And nothing else of the bundle."""
    JobClient(ME, ME).unpack([copy._replace(offer=offer(entries))], cache, "numba", after(30))
    top = tmp_path / "cache" / "numba"
    found = {str(path.relative_to(top)): path for path in top.rglob("*") if path.is_file()}
    assert {name: path.read_bytes() for name, path in found.items()} == files
    assert {path.stat().st_mtime_ns for path in found.values()} == {MTIME_NS}


def test_a_whole_bundle_is_unpacked_without_a_list(copy: Copy, cache: int, tmp_path: Path) -> None:
    """All its entries arrive."""
    JobClient(ME, ME).unpack([copy._replace(offer=offer(["e", "f"], whole=True))], cache, "numba", after(30))
    assert sum(path.is_file() for path in (tmp_path / "cache").rglob("*")) == 3


def test_an_index_that_lies_is_found_out(copy: Copy, cache: int) -> None:
    """Before anything is unpacked."""
    with pytest.raises(BundleDamaged):
        JobClient(ME, ME).unpack([copy._replace(offer=offer(["e", "none"]))], cache, "numba", after(30))
    assert os.listdir(cache) == []


def test_what_the_jobs_process_does_is_nobody_elses_fault(copy: Copy, cache: int) -> None:
    """A file that another job of the user removed meanwhile: this profile stays cold."""
    listed = Path(copy.directory, f"{SHA256}.files.json")
    files = json.loads(listed.read_text())
    files["e"]["m/gone.1"] = [1, SHA256, MTIME_NS]
    listed.write_text(json.dumps(files))
    with pytest.raises(ExtractionFailed, match="modes and times"):
        JobClient(ME, ME).unpack([copy._replace(offer=offer(["e", "f"], whole=True))], cache, "numba", after(30))
