"""The image store: the warm look-up; publishing, whole or not at all; the lock of an import; what damaged files say."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import time
from pathlib import Path

import filelock
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.lib.image_site import KIND, release
from tests.lib.superblocks import image
from warmstart.host.deadline import after
from warmstart.host.identity import Identity, WorkerDied, WorkerSilent
from warmstart.images.importers.base import ImageNotFound
from warmstart.images.reference import ImageReferenceInvalid, parse
from warmstart.images.scratch import ScratchUnusable
from warmstart.images.squashfs import ImageInvalid
from warmstart.images.store import eviction, layout, published
from warmstart.images.store.client import ImageStoreClient
from warmstart.images.store.eviction import ImageQuotaExceeded
from warmstart.images.store.layout import NOBODY, Found, ImageQuery, Pointer, image_name
from warmstart.images.store.published import ImageDraft, ImageProducer, Published, RememberedFailure
from warmstart.store.layout import StoreFailed

DIGEST = f"sha256:{'ab' * 32}"
NAME = image_name(DIGEST, KIND)
KEY = layout.key_of("reg.io/team/tool:1")
WHO = ImageProducer("n1", 1, 7, "x")
SHA256 = hashlib.sha256(image()).hexdigest()


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """Return an empty store."""
    path = tmp_path / "store"
    path.mkdir()
    return path


def names(store: Path) -> list[str]:
    return sorted(str(path.relative_to(store)) for path in store.rglob("*") if path.is_file())


def publish(store: Path, data: bytes = image()) -> Published:
    """Publish a file as node n1's run r1."""
    local = store.with_name("local")
    local.write_bytes(data)
    charged = NOBODY._replace(user="alice")
    draft = ImageDraft(DIGEST, "reg.io/a:1", KIND, "none", 1e9, "n1", 7, charged, files=3, unpacked=9000)
    with local.open("rb") as source:
        return published.publish_image(str(store), source.fileno(), NAME, draft, published.writer_of("k", "n1", "r1"))


# The warm look-up.


@pytest.fixture
def tagged(store: Path) -> Path:
    """Return a store with one image, and a tag that points to it since a minute ago."""
    publish(store)
    (store / "images" / "tags").mkdir()
    point(store, {"digest": DIGEST, "resolved": time.time() - 60})
    return store


def point(store: Path, pointer: object) -> None:
    (store / "images" / "tags" / f"{KEY}.json").write_text(json.dumps(pointer))


def find(store: Path, digest: str = "", age: float = 600) -> Found | None:
    """Look the image up, accepting pointers up to `age` seconds old."""
    return layout.find(str(store), KEY, digest, KIND, time.time() - age)


def test_finds_by_tag_and_by_digest(tagged: Path) -> None:
    expected = Found(NAME, f"{tagged}/images/{NAME}.sqsh", DIGEST, 4096, invalid="")
    assert find(tagged) == find(tagged, DIGEST) == expected


def test_the_pointers_own_time_decides(tagged: Path) -> None:
    os.utime(tagged / "images" / "tags" / f"{KEY}.json", (0, 0))
    assert find(tagged, age=70) is not None
    assert find(tagged, age=50) is None


@pytest.mark.parametrize(
    "pointer",
    [
        [],
        {"digest": DIGEST},
        {"digest": DIGEST, "resolved": "soon"},
        {"digest": "../../etc/passwd", "resolved": time.time()},
        {"digest": DIGEST, "resolved": time.time() + 100_000},
    ],
)
def test_a_damaged_pointer_is_none(tagged: Path, pointer: object) -> None:
    point(tagged, pointer)
    assert find(tagged) is None


def test_tells_what_is_wrong_with_an_image(tagged: Path) -> None:
    path = tagged / "images" / f"{NAME}.sqsh"
    path.chmod(0o600)
    os.truncate(path, 2048)
    assert find(tagged) == Found(NAME, str(path), DIGEST, 2048, invalid="cut short: 2048 of 3000 bytes")
    path.rename(tagged / "elsewhere")
    path.symlink_to(tagged / "elsewhere")
    with pytest.raises(OSError, match="symbolic links"):
        find(tagged)
    path.unlink()
    path.mkdir()
    found = find(tagged)
    assert found is not None
    assert found.invalid == "not a regular file"


@given(st.lists(st.from_regex(r"[a-z.]{1,9}(:[0-9]{1,4})?/[a-z0-9._/-]{1,9}(:\w{1,9})?", fullmatch=True), min_size=2))
def test_keys_are_file_names_and_differ(texts: list[str]) -> None:
    canonical = {f"reg.io/{'a' * 250}:1", f"reg.io/{'a' * 250}:2"}
    assert all(len(layout.key_of(name)) < 100 for name in canonical)
    short = set()
    for text in texts:
        try:
            short.add(parse(text).canonical())
        except ImageReferenceInvalid:
            continue
    keys = {layout.key_of(name) for name in canonical | short}
    assert len(keys) == len(canonical | short)
    assert all("/" not in key and not key.startswith(".") for key in keys)
    assert {layout.reference_of(layout.key_of(name)) for name in short} == short


# Publishing.


def test_publishes_the_bytes_and_what_is_known(store: Path) -> None:
    """The first one stays: a second publisher changes nothing."""
    assert publish(store) == Published(4096, SHA256, first=True)
    assert names(store) == [f"images/{NAME}.json", f"images/{NAME}.sqsh"]
    path = store / "images" / f"{NAME}.sqsh"
    before = path.stat()
    assert (path.read_bytes(), before.st_mode & 0o7777) == (image(), 0o444)
    assert json.loads((store / "images" / f"{NAME}.json").read_text()) == {
        "format": 1,
        "digest": DIGEST,
        "reference": "reg.io/a:1",
        "kind": KIND,
        "importer": "none",
        "published": 1e9,
        "node": "n1",
        "job_id": 7,
        "files": 3,
        "unpacked": 9000,
        "user": "alice",
        "uid": -1,
        "size": 4096,
        "sha256": SHA256,
    }
    assert publish(store).first is False
    assert path.stat().st_ino == before.st_ino


@pytest.mark.parametrize(
    ("known", "found"),
    [
        ({"sha256": "ab", "files": 3, "unpacked": 9000}, ("ab", 3, 9000)),
        ({"sha256": "ab"}, ("ab", 0, 0)),  # an earlier version recorded less
        ({"files": 3, "unpacked": 9000}, ("", 3, 9000)),
        ({"sha256": 7, "files": "3", "unpacked": 9000}, ("", 0, 0)),
        ({"sha256": "ab", "files": -3, "unpacked": 9000}, ("ab", 0, 0)),
    ],
)
def test_what_was_recorded_is_read(store: Path, known: dict[str, object], found: tuple[str, int, int]) -> None:
    (store / "images").mkdir()
    (store / "images" / f"{NAME}.json").write_text(json.dumps(known))
    assert published.recorded(str(store), NAME) == found


def test_what_is_no_image_or_has_no_store_leaves_nothing(store: Path) -> None:
    """A store that is not mounted is an error, not an empty directory to fill."""
    with pytest.raises(ImageInvalid):
        publish(store, image()[:2048])
    assert names(store) == []
    with pytest.raises(FileNotFoundError):
        publish(store / "nowhere")
    assert not (store / "nowhere").exists()
    (store / "images" / "locks").write_text("in the way")
    with pytest.raises(NotADirectoryError) as raised, published.opened_folder(str(store), "locks"):
        pass
    assert raised.value.filename == f"{store}/images/locks"


def test_a_broken_image_is_put_away_and_a_good_one_stays(store: Path) -> None:
    """A job may have it open. What was known of it goes, and its name is free again."""
    publish(store)
    assert published.put_away(str(store), NAME) is False
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


def test_sweeps_only_old_temps_of_its_own_reference(store: Path) -> None:
    """What dead producers of this reference left goes; a live one's and other references' temps stay."""
    publish(store)
    old, young, other = (
        store / "images" / f".tmp-{published.writer_of(key, 'n2', run)}-1-abcd"
        for key, run in (("k", "old"), ("k", "young"), ("other", "old"))
    )
    for path in (old, young, other):
        path.touch()
    for path in (old, other):
        os.utime(path, (time.time() - 3600,) * 2)
    assert published.sweep(str(store), "k") == 1
    assert [path.exists() for path in (old, young, other)] == [False, True, True]


def test_images_whose_producers_died_after_the_link(store: Path) -> None:
    """They were proved before: the hash is recorded now, and said to be late. A young one may still be at work."""
    publish(store)
    images = store / "images"
    assert published.unrecorded(str(store)) == []
    (images / f"{NAME}.json").unlink()
    assert published.unrecorded(str(store)) == []
    os.utime(images / f"{NAME}.sqsh", (0, 0))
    assert published.unrecorded(str(store)) == [NAME]
    assert published.check_bytes(str(store), NAME, "t").problem == ""
    known = json.loads((images / f"{NAME}.json").read_text())
    assert (known["sha256"], known["size"], known["recorded_late"]) == (SHA256, len(image()), True)


# The lock of an import, and how it ended.


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
    release()


def test_a_live_producers_word_stays_and_a_dead_ones_goes(store: Path) -> None:
    """Only whoever has the lock is believed to live. What it says is short: users see it."""
    locks = store / "images" / "locks"
    assert published.begin(str(store), "live", WHO, "t") == ""
    (locks / "dead.producer").write_text("{}")
    published.forget_dead(str(store))
    assert [path.name for path in locks.glob("*.producer")] == ["live.producer"]
    assert published.producer_of(str(store), "live") == WHO
    published.announce(str(store), "live", WHO._replace(phase="y" * 100), "t")
    assert published.producer_of(str(store), "live") == WHO._replace(phase="y" * 80)
    published.end(str(store), "live")
    release()
    assert published.producer_of(str(store), "live") is None


def test_an_error_is_remembered_by_its_code_and_fields() -> None:
    """A quota is its user's alone; a node's own failure is nothing that others are told."""
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


def test_old_failures_are_forgotten(store: Path) -> None:
    """Their files would stay for ever: users can name any number of images that do not exist."""
    for name in ("old", "new"):
        published.remember(str(store), name, RememberedFailure("image-not-found", {"image": name}), "t")
    os.utime(store / "images" / "failed" / "old.json", (0, 0))
    published.forget_failures(str(store), 3600)
    assert os.listdir(store / "images" / "failed") == ["new.json"]


# The client.


@pytest.fixture
def client(store: Path) -> ImageStoreClient:
    """Return a client whose worker is whoever runs the test."""
    return ImageStoreClient.of(Identity("me", os.getuid(), os.getgid()), str(store))


WANT = ImageQuery(parse("reg.io/a:1"), KIND, "key", "lock", time.time() - 60)


def test_a_use_is_recorded_once_a_day(client: ImageStoreClient, tmp_path: Path) -> None:
    """The node's own disk spares the store a write for each job, until it says a day ago, or the future."""
    known = tmp_path / "uses"
    assert [client.record_use(NAME, "n1", str(known), after(60)) for _ in range(2)] == [True, False]
    for age in (86_401, -10_000):
        os.utime(known / NAME, (time.time() - age,) * 2)
        assert client.record_use(NAME, "n1", str(known), after(60))


def die(*_: object) -> Found | None:
    os._exit(9)


def test_a_look_up_that_dies_says_so(client: ImageStoreClient, monkeypatch: pytest.MonkeyPatch) -> None:
    """The sentence is about the image, and not about our modules."""
    client = client.about("image reg.io/a:1 in the store /s")
    assert client.find(WANT, after(60)) is None
    monkeypatch.setattr(layout, "find", die)
    with pytest.raises(WorkerDied) as raised:
        client.find(WANT, after(60))
    assert str(raised.value) == "image reg.io/a:1 in the store /s: the helper process that was at work there died"
    with pytest.raises(WorkerSilent, match=r"image reg\.io/a:1 in the store /s: no time was left"):
        client.find(WANT, after(0))


def test_a_producer_has_the_lock_for_as_long_as_it_is_one(client: ImageStoreClient) -> None:
    with client.holding(after(60), published.begin, WANT.lock, WHO, "t") as lockless:
        assert lockless == ""
        assert client.run(after(60), published.begin, WANT.lock, WHO, "t") is None
        assert client.run(after(60), published.is_at_work, WANT.lock)
    assert not client.run(after(60), published.is_at_work, WANT.lock)


def test_errors_say_what_they_are_about(client: ImageStoreClient) -> None:
    """The store, or what its user has named."""
    gone = client.at(f"{client.path}/gone")
    with pytest.raises(StoreFailed, match=f"the image store of {gone.path}: No such file"):
        gone.run(after(60), eviction.inventory, 0.0)
    with pytest.raises(StoreFailed, match=r"image reg\.io/a:1: No such file"):
        gone.about("image reg.io/a:1").run(after(60), published.last_pointer, WANT.key)
