"""Publishing into the store: whole or not at all, never over another image; the lock of an import; and depth `full`."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import filelock
import pytest

from tests.lib.superblocks import image
from warmstart.images.importers.base import ImageNotFound
from warmstart.images.scratch import ScratchUnusable
from warmstart.images.squashfs import ImageInvalid
from warmstart.images.store import published
from warmstart.images.store.eviction import ImageQuotaExceeded
from warmstart.images.store.layout import NOBODY, Pointer, image_name
from warmstart.images.store.published import ImageDraft, ImageProducer, Published, RememberedFailure

DIGEST = f"sha256:{'ab' * 32}"
NAME = image_name(DIGEST, "x86_64")
IMAGE_SHA256 = hashlib.sha256(image()).hexdigest()
DRAFT = ImageDraft(
    digest=DIGEST,
    reference="reg.io/a:1",
    kind="x86_64",
    importer="none",
    published=1e9,
    node="n1",
    job_id=7,
    charged=NOBODY._replace(user="alice"),
    files=3,
    unpacked=9000,
)


@pytest.fixture
def source(tmp_path: Path) -> Iterator[int]:
    (tmp_path / "local").write_bytes(image())
    fd = os.open(tmp_path / "local", os.O_RDONLY)
    yield fd
    os.close(fd)


@pytest.fixture
def store(tmp_path: Path) -> Path:
    path = tmp_path / "store"
    path.mkdir()
    return path


def names(store: Path) -> list[str]:
    return sorted(str(path.relative_to(store)) for path in store.rglob("*") if path.is_file())


def publish(store: Path, fd: int) -> Published:
    return published.publish_image(str(store), fd, NAME, DRAFT, published.writer_of("k", "n1", "r1"))


def test_an_error_names_the_whole_path(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.open

    def refuse(path: str, *more: Any, **named: Any) -> int:  # noqa: ANN401 - os.open's
        if path in ("images", "locks"):
            raise PermissionError(errno.EACCES, "Permission denied", path)
        return real(path, *more, **named)

    monkeypatch.setattr(os, "open", refuse)
    with pytest.raises(PermissionError) as raised, published.opened_folder(str(store)):
        pass
    assert raised.value.filename == f"{store}/images"


def test_publishes_the_bytes_and_what_is_known(store: Path, source: int) -> None:
    done = publish(store, source)
    sha256 = hashlib.sha256(image()).hexdigest()
    assert done == Published(4096, sha256, first=True)
    assert names(store) == [f"images/{NAME}.json", f"images/{NAME}.sqsh"]
    path = store / "images" / f"{NAME}.sqsh"
    assert path.read_bytes() == image()
    assert path.stat().st_mode & 0o7777 == 0o444
    assert list(json.loads((store / "images" / f"{NAME}.json").read_text()).items()) == [
        ("format", 1),
        ("digest", DIGEST),
        ("reference", "reg.io/a:1"),
        ("kind", "x86_64"),
        ("importer", "none"),
        ("published", 1e9),
        ("node", "n1"),
        ("job_id", 7),
        ("files", 3),
        ("unpacked", 9000),
        ("user", "alice"),
        ("uid", -1),
        ("size", 4096),
        ("sha256", sha256),
    ]


@pytest.mark.parametrize(
    ("known", "found"),
    [
        ({"sha256": "ab", "files": 3, "unpacked": 9000}, ("ab", 3, 9000)),
        ({"sha256": "ab"}, ("ab", 0, 0)),
        ({"files": 3, "unpacked": 9000}, ("", 3, 9000)),
        ({"sha256": 7, "files": "3", "unpacked": 9000}, ("", 0, 0)),
        ({"sha256": "ab", "files": -3, "unpacked": 9000}, ("ab", 0, 0)),
        ({"sha256": "ab", "files": 3, "unpacked": -1}, ("ab", 0, 0)),
    ],
)
def test_what_was_recorded_is_read(store: Path, known: dict[str, object], found: tuple[str, int, int]) -> None:
    (store / "images").mkdir()
    (store / "images" / f"{NAME}.json").write_text(json.dumps(known))
    assert published.recorded(str(store), NAME) == found


def test_a_broken_source_leaves_nothing(store: Path, tmp_path: Path) -> None:
    (tmp_path / "local").write_bytes(image()[:2048])
    fd = os.open(tmp_path / "local", os.O_RDONLY)
    try:
        with pytest.raises(ImageInvalid):
            publish(store, fd)
    finally:
        os.close(fd)
    assert names(store) == []


def test_never_makes_the_store_itself(tmp_path: Path, source: int) -> None:
    with pytest.raises(FileNotFoundError):
        publish(tmp_path / "nowhere", source)
    assert not (tmp_path / "nowhere").exists()


def test_a_broken_image_is_put_away(store: Path, source: int) -> None:
    publish(store, source)
    path = store / "images" / f"{NAME}.sqsh"
    path.chmod(0o600)
    os.truncate(path, 100)
    assert published.put_away(str(store), NAME) is True
    (name,) = names(store)
    assert name.startswith(f"images/.damaged-{NAME}.")
    assert published.put_away(str(store), NAME) is False


def test_what_a_tag_meant_is_known_however_long_ago(store: Path) -> None:
    assert published.last_pointer(str(store), "k") is None
    published.point(str(store), "k", DIGEST, 1e9, "t")
    file = store / "images" / "tags" / "k.json"
    assert file.read_text() == json.dumps({"format": 1, "digest": DIGEST, "resolved": 1e9})
    assert published.last_pointer(str(store), "k") == Pointer(DIGEST, 1e9)
    published.point(str(store), "k", "sha256:../../x", 1e9, "t")
    assert published.last_pointer(str(store), "k") is None


def test_sweeps_only_old_temps_of_its_own_reference(store: Path, source: int) -> None:
    publish(store, source)
    images = store / "images"
    old, young, other = (
        images / f".tmp-{published.writer_of(key, 'n2', run)}-1-abcd"
        for key, run in (("k", "old"), ("k", "young"), ("other", "old"))
    )
    for path in (old, young, other):
        path.touch()
    for path in (old, other):
        os.utime(path, (time.time() - 3600,) * 2)
    assert published.sweep(str(store), "k") == 1
    assert not old.exists()
    assert young.exists()
    assert other.exists()


# The lock of an import: what it does where there are no locks, and what dead producers leave.


WHO = ImageProducer("n1", 1, 7, "x")


@pytest.mark.parametrize(
    ("number", "is_lack"),
    [
        *((number, True) for number in (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.ESTALE)),
        *((number, False) for number in (errno.EIO, errno.EROFS, errno.ENOSPC)),
    ],
)
def test_without_locks_everybody_imports_and_on_a_failing_store_nobody(
    store: Path, monkeypatch: pytest.MonkeyPatch, number: int, is_lack: bool
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(number, "refused")

    monkeypatch.setattr(filelock.FileLock, "acquire", refuse)
    for _ in range(2):
        if is_lack:
            assert published.begin(str(store), "key", WHO, "t")
        else:
            with pytest.raises(OSError, match="refused"):
                published.begin(str(store), "key", WHO, "t")
    published.end(str(store), "key")


def test_a_live_producers_word_stays_and_a_dead_ones_goes(tmp_path: Path) -> None:
    assert published.begin(str(tmp_path), "live", WHO, "t") == ""
    (tmp_path / "images" / "locks" / "dead.producer").write_text("{}")
    published.forget_dead(str(tmp_path))
    assert [path.name for path in (tmp_path / "images" / "locks").glob("*.producer")] == ["live.producer"]
    assert published.producer_of(str(tmp_path), "live") == WHO
    published.end(str(tmp_path), "live")
    assert published.producer_of(str(tmp_path), "live") is None


def test_old_failures_are_forgotten(tmp_path: Path) -> None:
    for name in ("old", "new"):
        published.remember(str(tmp_path), name, RememberedFailure("image-not-found", {"image": name}), "t")
    os.utime(tmp_path / "images" / "failed" / "old.json", (0, 0))
    published.forget_failures(str(tmp_path), 3600)
    assert os.listdir(tmp_path / "images" / "failed") == ["new.json"]


def test_an_error_is_remembered_by_its_code_and_fields() -> None:
    error = ImageQuotaExceeded(bytes=1, user="alice", taken=2, quota=3)
    failure = RememberedFailure.of(error, 2001)
    assert (failure.uid, failure.text) == (2001, str(error))
    again = published.as_error(failure)
    assert isinstance(again, ImageQuotaExceeded)
    assert str(again) == str(error)
    assert RememberedFailure.of(ImageNotFound(image="a"), 2001).uid == -1
    full = RememberedFailure.of(ScratchUnusable(path="/w", problem="full"))
    assert published.as_error(full) is None
    assert published.as_error(full._replace(code="from-the-future")) is None


def test_what_is_said_is_short(tmp_path: Path) -> None:
    published.begin(str(tmp_path), "key", WHO, "t")
    file = tmp_path / "images" / "locks" / "key.producer"
    assert json.loads(file.read_text())["host"] == "n1"
    published.announce(str(tmp_path), "key", WHO._replace(phase="y" * 100), "t")
    assert published.producer_of(str(tmp_path), "key") == WHO._replace(phase="y" * 80)
    published.end(str(tmp_path), "key")


@pytest.fixture
def one_image(tmp_path: Path) -> Path:
    """Return a store with one image and what is known of it."""
    (tmp_path / "images").mkdir()
    (tmp_path / "images" / "i.sqsh").write_bytes(image())
    (tmp_path / "images" / "i.json").write_text(json.dumps({"sha256": IMAGE_SHA256, "job_id": 7}))
    return tmp_path


def test_a_hash_that_its_producer_did_not_write_down_is_written_late(one_image: Path) -> None:
    (one_image / "images" / "i.json").unlink()
    assert published.check_bytes(str(one_image), "i", "t").problem == ""
    known = json.loads((one_image / "images" / "i.json").read_text())
    assert (known["sha256"], known["size"], known["recorded_late"]) == (IMAGE_SHA256, len(image()), True)


def test_images_that_nothing_is_known_of_are_found(one_image: Path) -> None:
    images = one_image / "images"
    (images / ".evicted-i.sqsh").touch()
    assert published.unrecorded(str(one_image)) == []
    (images / "i.json").unlink()
    assert published.unrecorded(str(one_image)) == []
    for path in images.iterdir():
        os.utime(path, (0, 0))
    assert published.unrecorded(str(one_image)) == ["i"]
