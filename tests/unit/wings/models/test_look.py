"""Which files of a model are copied, and when a copy is current."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import pytest

from tests.lib.wings.models.values import snapshot
from warmstart.policy.keys import User
from warmstart.policy.shared import SharedPath
from warmstart.wings.models import look as looking
from warmstart.wings.models.look import Look, ModelUnusable, look, shared_by

LARGE = b"weights of a model"


def seen(path: Path, prefix: Path) -> Look:
    return look(str(path), [str(prefix)])


def test_the_large_files_of_a_directory(tmp_path: Path) -> None:
    """Those in directories below it, too, and what links lead to below the prefixes; each once."""
    model = tmp_path / "model"
    (model / "shards").mkdir(parents=True)
    for name in ("a.bin", "shards/b.bin"):
        (model / name).write_bytes(LARGE)
    (model / "config").write_text("{}")
    (model / "again.bin").symlink_to("a.bin")
    (tmp_path / "other.bin").write_bytes(LARGE)
    (model / "out.bin").symlink_to("../other.bin")
    (model / "dangling.bin").symlink_to("nowhere")
    os.mkfifo(model / "pipe")
    found = seen(model, tmp_path)
    assert [file.path for file in found.files] == [f"{model}/a.bin", f"{model}/shards/b.bin", f"{tmp_path}/other.bin"]
    assert (found.path, found.size, found.left_out) == (str(model), 3 * len(LARGE), ())
    (tmp_path / "moved").mkdir()
    moved = (tmp_path / "model").rename(tmp_path / "moved" / "model")
    (moved / "out.bin").unlink()
    (moved / "out.bin").symlink_to("../../other.bin")
    found = seen(moved, tmp_path / "moved")
    assert ([os.path.basename(file.path) for file in found.files], found.left_out) == (["a.bin", "b.bin"], ("out.bin",))


def test_a_copy_of_a_plain_file_is_its_users_and_of_this_version(tmp_path: Path) -> None:
    """Another user, time, size, inode or path is another copy, and another set."""
    file, new = tmp_path / "a.bin", tmp_path / "new"
    versions = []
    for data, mtime_ns in ((LARGE, 2), (LARGE, 1), (LARGE + b".", 1), (LARGE + b".", 1)):
        new.write_bytes(data)
        os.utime(new, ns=(mtime_ns, mtime_ns))
        new.rename(file)  # the last two differ in their inodes alone
        versions.append(seen(tmp_path, tmp_path.parent))
    assert seen(tmp_path, tmp_path.parent).key("1") == versions[-1].key("1") != versions[-1].key("2")
    assert len({version.key("1") for version in versions}) == len(versions)
    assert len({version.files[0].key("1") for version in versions}) == len(versions)


def test_a_snapshot_of_a_cache(tmp_path: Path) -> None:
    """A blob named by its SHA-256 has one copy for all, and each user a set."""
    made = snapshot(tmp_path / "hub", LARGE)
    top = made.parent.parent
    (top / "blobs" / "0abc").write_bytes(LARGE)  # named as git does
    (made / "tokenizer.json").symlink_to("../../blobs/0abc")
    git, blob = seen(made, tmp_path).files
    assert (git.path, git.sha256) == (f"{top}/blobs/0abc", "")
    assert blob.key("1") == blob.key("2") == blob.sha256 == os.path.basename(blob.path)
    assert git.key("1") != git.key("2")
    assert seen(made, tmp_path).key("1") != seen(made, tmp_path).key("2")
    with pytest.raises(ModelUnusable, match="it has no file"):  # where the blobs are is offered to nobody
        look(str(made), [str(made.parent)])


@pytest.mark.parametrize(
    ("glob", "owner", "is_guarded", "is_shared", "words"),
    [
        ("models/*", 1501, True, True, ""),
        ("models/*", 0, True, True, ""),
        ("models/*", 1502, True, False, "belongs to none of the owners that rule all names"),
        ("models/*", 1501, False, False, "can be written by others than its owner"),
        ("elsewhere/*", 1501, True, False, ""),
    ],
)
def test_whose_a_model_is(  # noqa: PLR0917 - a table's
    tmp_path: Path, glob: str, owner: int, is_guarded: bool, is_shared: bool, words: str
) -> None:
    model = tmp_path / "models/tiny"
    model.mkdir(parents=True)
    (model / "model.bin").write_bytes(LARGE)
    found = seen(model, tmp_path)
    file = found.files[0]._replace(owner=owner, is_guarded=is_guarded)
    rule = SharedPath(f"{tmp_path}/{glob}", (User("svc_ml", 1501),), "site", "all")
    told = f"{model}/model.bin {words}" if words else ""
    assert shared_by(found._replace(files=(file,)), [rule]) == (rule if is_shared else None, told)


@pytest.mark.parametrize(
    ("model", "prefix", "bounds", "words"),
    [
        ("models/one", "elsewhere", {}, "below none of models.prefixes"),
        ("models/two", "models", {}, "No such file or directory"),
        ("models/one/a", "models", {}, "Not a directory"),
        ("models/one", "models", {"LEAST": 1 << 20}, "it has no file of 1 MiB or more"),
        ("models/one", "models", {"MOST_FILES": 2}, "it has more than 2 files of 0 MiB or more"),
        ("models/one", "models", {"MOST_NAMES": 2}, "it has more than 2 names"),
    ],
)
def test_what_is_no_model(  # noqa: PLR0917 - a table's
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, model: str, prefix: str, bounds: dict[str, int], words: str
) -> None:
    (tmp_path / "models/one").mkdir(parents=True)
    for name in "abc":
        (tmp_path / "models/one" / name).write_bytes(LARGE)
    for name, most in bounds.items():
        monkeypatch.setattr(looking, name, most)
    with pytest.raises(ModelUnusable, match=words):
        seen(tmp_path / model, tmp_path / prefix)


@pytest.mark.report
def test_blobs_that_all_models_share(tmp_path: Path) -> None:
    """huggingface_hub 2.4: the file lies in `hub/blobs/`, and the link to it says the SHA-256."""
    made = snapshot(tmp_path / "hub", LARGE)
    (blob,) = (made.parent.parent / "blobs").iterdir()
    shared = tmp_path / "hub" / "blobs" / "ab" / ("ab" * 32)
    shared.parent.mkdir(parents=True)
    blob.rename(shared)
    blob.symlink_to(os.path.relpath(shared, blob.parent))
    (found,) = seen(made, tmp_path).files
    assert (found.path, found.sha256) == (str(shared), hashlib.sha256(LARGE).hexdigest())


@pytest.mark.report
@pytest.mark.parametrize("whole", [True, False])
def test_links_to_another_models_files(tmp_path: Path, *, whole: bool) -> None:
    """A fine-tune with links to its base, and a directory with links into a cache; what is elsewhere is named."""
    base = snapshot(tmp_path / "hub", LARGE)
    model = tmp_path / "tuned" / "model"
    model.mkdir(parents=True)
    (model / "adapter.bin").write_bytes(LARGE)
    (model / "base.safetensors").symlink_to(base / "model.safetensors")
    found = seen(model, tmp_path if whole else tmp_path / "tuned")
    claims = sorted(file.sha256 for file in found.files)
    assert claims == (["", hashlib.sha256(LARGE).hexdigest()] if whole else [""])
    assert found.left_out == (() if whole else ("base.safetensors",))


@pytest.mark.report
@pytest.mark.parametrize("whole", [True, False])
def test_links_to_directories(tmp_path: Path, *, whole: bool) -> None:
    """`blobs` that was moved to another disk, and a base's directory; links up lead nowhere, and loops end."""
    made = snapshot(tmp_path / "hub", LARGE)
    top = made.parent.parent
    moved = tmp_path / "disk" / "moved"
    moved.parent.mkdir()
    (top / "blobs").rename(moved)
    (top / "blobs").symlink_to(moved)
    (moved / "loop").symlink_to(moved)
    model = tmp_path / "tuned" / "model"
    model.mkdir(parents=True)
    (model / "adapter.bin").write_bytes(LARGE + b".")
    (model / "base").symlink_to(top)
    (model / "up").symlink_to("..")
    (tmp_path / "tuned" / "other.bin").write_bytes(LARGE)
    adapter, digest = ("", f"{model}/adapter.bin"), hashlib.sha256(LARGE).hexdigest()
    found = seen(model, tmp_path if whole else tmp_path / "tuned")
    own = [(file.sha256, file.path) for file in found.files]
    assert sorted(own) == sorted([adapter, (digest, f"{moved}/{digest}")] if whole else [adapter])
    assert found.left_out == (() if whole else ("base",))
    if whole:
        assert [file.path for file in seen(made, tmp_path).files] == [f"{moved}/{digest}"]
