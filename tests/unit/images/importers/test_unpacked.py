"""Finishing a tree that umoci has unpacked: nothing is touched outside, whatever links it has."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from tests.lib.layer_stacks import Item, archive, write_layout
from warmstart.images.importers import unpacked
from warmstart.images.importers.image_config import Additions

ADDED = Additions({b"etc/environment": b"A=b\n", b"deep/er/f": b"x"}, (b"work/dir", b"var/cache/w"))


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """Return an empty tree, beside a directory that nothing may get into."""
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "kept").write_text("kept")
    (tmp_path / "tree").mkdir(mode=0o700)
    return tmp_path / "tree"


@pytest.mark.threat(48)
@pytest.mark.parametrize("link", ["etc", "dev", "deep", "work", "var", "etc/environment", "deep/er", "var/cache/w"])
@pytest.mark.parametrize("target", ["{outside}", "{outside}/kept", "../outside", "/", "nowhere"])
def test_no_link_is_followed(tree: Path, link: str, target: str) -> None:
    outside = tree.parent / "outside"
    (tree / link).parent.mkdir(parents=True, exist_ok=True)
    (tree / link).symlink_to(target.format(outside=outside))
    unpacked.finish(str(tree), ADDED)
    assert [(path.name, path.read_text()) for path in outside.iterdir()] == [("kept", "kept")]
    for path, content in ADDED.files.items():
        found = tree / path.decode()
        assert not found.is_symlink()
        assert (found.read_bytes(), found.stat().st_mtime) == (content, 0)
        assert stat.S_IMODE(found.stat().st_mode) == 0o644
    assert (tree / link).is_symlink() == (link in {"dev", "work", "var", "var/cache/w"})


def test_directories_are_made_where_nothing_is(tree: Path) -> None:
    (tree / "var").mkdir(mode=0o711)
    (tree / "work").write_text("a file")
    unpacked.finish(str(tree), ADDED)
    assert stat.S_IMODE((tree / "var").stat().st_mode) == 0o711
    assert stat.S_IMODE((tree / "var/cache/w").stat().st_mode) == 0o755
    assert (tree / "work").read_text() == "a file"


def test_what_is_in_the_place_of_a_file_goes(tree: Path) -> None:
    (tree / "etc/environment/below").mkdir(parents=True)
    (tree / "dev/shm").mkdir(parents=True)
    (tree / "dev/shm/f").touch()
    unpacked.finish(str(tree), ADDED)
    assert (tree / "etc/environment").read_bytes() == b"A=b\n"
    assert os.listdir(tree / "dev") == []


def test_the_owner_can_read_all_and_fill_directories(tree: Path) -> None:
    for name, mode in (("d", 0), ("shadow", 0), ("sudo", 0o4111)):
        (tree / name).mkdir() if name == "d" else (tree / name).touch()
        (tree / name).chmod(mode)
    (tree / "dangling").symlink_to("nowhere")
    os.mkfifo(tree / "fifo", 0)
    unpacked.finish(str(tree), Additions({}, ()))
    modes = {name: stat.S_IMODE((tree / name).stat().st_mode) for name in ("", "d", "shadow", "sudo", "fifo")}
    assert modes == {"": 0o755, "d": 0o700, "shadow": 0o400, "sudo": 0o4511, "fifo": 0o400}


def test_the_program_says_what_failed(tree: Path, capfd: pytest.CaptureFixture[str]) -> None:
    write_layout(tree.parent / "layout", [archive([Item("f")])], config={"Env": 1})
    assert unpacked.main([str(tree.parent / "layout"), "import", str(tree), ""]) == 1
    assert "Env" in capfd.readouterr().err
    write_layout(tree.parent / "good", [archive([Item("f")])])
    assert unpacked.main([str(tree.parent / "good"), "import", str(tree / "missing"), ""]) == 1
    assert "missing" in capfd.readouterr().err
    assert unpacked.main([str(tree.parent / "good"), "import", str(tree), ""]) == 0
