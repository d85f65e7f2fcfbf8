"""Which files of a model are copied, and when a copy is current."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import pytest

from tests.lib.wings.models.values import snapshot
from warmstart.policy.compiled import User
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
    model = tmp_path / "model"
    model.mkdir()
    file = model / "a.bin"
    file.write_bytes(LARGE)
    versions = [seen(model, tmp_path)]
    assert seen(model, tmp_path).key("1") == versions[0].key("1") != versions[0].key("2")
    os.utime(file, ns=(1, 1))
    versions.append(seen(model, tmp_path))
    file.write_bytes(LARGE + b".")
    os.utime(file, ns=(1, 1))
    versions.append(seen(model, tmp_path))
    (model / "new").write_bytes(LARGE + b".")
    os.utime(model / "new", ns=(1, 1))
    (model / "new").rename(file)
    versions.append(seen(model, tmp_path))
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


def test_whose_a_model_is(tmp_path: Path) -> None:
    """By a rule that covers it, if each of its large files is an owner's, or root's, and nobody else can write it."""
    model = tmp_path / "models/tiny"
    model.mkdir(parents=True)
    (model / "model.bin").write_bytes(b"weights of a model")
    found = seen(model, tmp_path)
    rule = SharedPath(f"{tmp_path}/models/*", (User("svc_ml", 1501),), "site", "all")
    told = []
    for owner, is_guarded in ((1501, True), (0, True), (1502, True), (1501, False)):
        files = (found.files[0]._replace(owner=owner, is_guarded=is_guarded),)
        told.append(shared_by(found._replace(files=files), [rule]))
    name = f"{model}/model.bin"
    assert told == [
        (rule, ""),
        (rule, ""),
        (None, f"{name} belongs to none of the owners that rule all names"),
        (None, f"{name} can be written by others than its owner"),
    ]
    assert shared_by(found, [rule._replace(path="/elsewhere/*")]) == (None, "")


@pytest.mark.parametrize("case", ["outside", "missing", "a file", "nothing large", "too many", "too many names"])
def test_what_is_no_model(tmp_path: Path, case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model, prefix = tmp_path / "models/one", tmp_path / "models"
    model.mkdir(parents=True)
    for name in "abc":
        (model / name).write_bytes(LARGE)
    if case == "outside":
        prefix = tmp_path / "elsewhere"
    elif case == "missing":
        model = prefix / "two"
    elif case == "a file":
        model /= "a"
    elif case == "nothing large":
        monkeypatch.setattr(looking, "LEAST", 1 << 20)
    elif case == "too many":
        monkeypatch.setattr(looking, "MOST_FILES", 2)
    else:
        monkeypatch.setattr(looking, "MOST_NAMES", 2)
    words = {
        "outside": "below none of models.prefixes",
        "missing": "No such file or directory",
        "a file": "Not a directory",
        "nothing large": "it has no file of 1 MiB or more",
        "too many": "it has more than 2 files of 0 MiB or more",
        "too many names": "it has more than 2 names",
    }
    with pytest.raises(ModelUnusable, match=words[case]):
        seen(model, prefix)


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
