"""What is extracted of real bundles, in their files' times, and that a failure leaves nothing."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.lib.alone import run_alone
from tests.lib.packed import MTIME_NS, packed
from warmstart.host import process
from warmstart.host.deadline import after
from warmstart.host.files import DiskFailed, opened_dir
from warmstart.host.identity import Identity
from warmstart.host.process import CompletedProgram
from warmstart.seed import extract as extraction
from warmstart.seed.extract import Source, extract, restore_times

ME = Identity("me", os.getuid(), os.getgid())
FIRST = {"e": {"m/a.1": b"one", "m/b.1": b"two"}, "f": {"f.1": b"three"}}


@pytest.fixture(autouse=True)
def without_namespaces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Run unsquashfs as it is: root gives it namespaces of its own."""
    monkeypatch.setattr(process, "run_alone", run_alone)


@pytest.fixture
def cache(tmp_path: Path) -> Iterator[int]:
    (tmp_path / "cache").mkdir()
    with opened_dir(str(tmp_path / "cache")) as fd:
        yield fd


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> str:
    base = tmp_path_factory.mktemp("bundle")
    os.close(packed(base, FIRST))
    (made,) = base.glob("*.sqsh")
    return str(made)


def contents(tmp_path: Path) -> dict[str, bytes]:
    cache = tmp_path / "cache"
    return {str(path.relative_to(cache)): path.read_bytes() for path in cache.rglob("*") if path.is_file()}


def test_a_list_of_nothing_is_nothing_although_unsquashfs_takes_it_for_everything(
    cache: int, tmp_path: Path, bundle: str
) -> None:
    extract([Source(bundle, []), Source(bundle, ["m/b.1"])], cache, "numba", ME, ME.uid, after(30))
    assert contents(tmp_path) == {"numba/m/b.1": b"two"}


@pytest.mark.parametrize("damage", ["cut", "no squashfs"])
def test_a_damaged_bundle(cache: int, tmp_path: Path, bundle: str, damage: str) -> None:
    bad = tmp_path / "bad.sqsh"
    bad.write_bytes(Path(bundle).read_bytes()[:90] if damage == "cut" else b"x" * 5000)
    with pytest.raises(DiskFailed, match=r"bad\.sqsh"):
        extract([Source(bundle, None), Source(str(bad), None)], cache, "numba", ME, ME.uid, after(30))


def test_a_bundle_that_is_a_link_is_not_opened(cache: int, tmp_path: Path, bundle: str) -> None:
    (tmp_path / "link").symlink_to(bundle)
    with pytest.raises(OSError, match="symbolic links"):
        extract([Source(f"{tmp_path}/link", None)], cache, "numba", ME, ME.uid, after(30))


@pytest.mark.parametrize(
    ("stderr", "reason"),
    [
        ("Write on output file failed because No space left on device\nFATAL ERROR: x", "No space left on device"),
        ("something\nlast words", "last words"),
        ("failed because \x1b[31m\nlast words", "last words"),
        ("", "no message"),
    ],
)
def test_the_reason_is_what_unsquashfs_says_first(stderr: str, reason: str) -> None:
    assert extraction._reason(CompletedProgram(1, b"", stderr.encode())) == reason


def test_all_of_a_bundle_with_times_and_modes_as_a_tool_of_the_job_would_have_made_it(
    cache: int, tmp_path: Path, bundle: str
) -> None:
    extract([Source(bundle, None)], cache, "numba", ME, ME.uid, after(30))
    assert contents(tmp_path) == {"numba/m/a.1": b"one", "numba/m/b.1": b"two", "numba/f.1": b"three"}
    restore_times(cache, "numba", {"m/a.1": MTIME_NS, "f.1": 5})
    top = tmp_path / "cache" / "numba"
    assert ((top / "m/a.1").stat().st_mtime_ns, (top / "f.1").stat().st_mtime_ns) == (MTIME_NS, 5)
    modes = [stat.S_IMODE((top / name).stat().st_mode) for name in ("", "m", "m/a.1", "f.1")]
    assert modes == [0o700, 0o755, 0o644, 0o644]
    with pytest.raises(FileNotFoundError):
        restore_times(cache, "numba", {"m/c.1": 5})
