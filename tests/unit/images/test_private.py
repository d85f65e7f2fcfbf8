"""Private images: a store of towner own, and a copy for each job."""

from __future__ import annotations

import os
import resource
from pathlib import Path

import pytest

from tests.lib import image_site
from warmstart.host.deadline import after
from warmstart.host.files import DiskFailed
from warmstart.host.identity import Identity
from warmstart.images import private
from warmstart.images.private import JobOwner
from warmstart.images.query import Obtained, Site
from warmstart.images.reference import parse
from warmstart.images.store.client import ImageStoreClient
from warmstart.store.layout import StoreFailed

IMAGE = parse("reg.io/team/a:1")
NAME = "reg.io+team+a=1.sqsh"


@pytest.fixture
def site(tmp_path: Path) -> Site:
    """Return a site whose store's owner is whoever runs the test."""
    (tmp_path / "store").mkdir()
    store = ImageStoreClient.of(Identity("me", os.getuid(), os.getgid()), str(tmp_path / "store"))
    return image_site.site(tmp_path / "store", tmp_path / "workspace")._replace(store=store)


@pytest.fixture
def owner(tmp_path: Path) -> JobOwner:
    (tmp_path / "run").mkdir(mode=0o711)
    return JobOwner(str(tmp_path / "run"), os.getuid(), os.getgid())


def stored(tmp_path: Path, data: bytes) -> Obtained:
    (tmp_path / "image").write_bytes(data)
    return Obtained("image", str(tmp_path / "image"), f"sha256:{'ab' * 32}", len(data), "reused", 0.0)


def test_private_images_have_a_store_of_their_own(site: Site) -> None:
    site = site._replace(places=lambda: (image_site.Elsewhere([]),))
    apart = private.site_of(site, "team", after(9))
    assert apart.store.path == f"{site.store.path}/private/team"
    assert apart.places() == ()
    for path in (apart.store.path, os.path.dirname(apart.store.path)):
        assert os.stat(path).st_mode & 0o7777 == 0o700
    assert private.site_of(site, "team", after(9)) == apart
    with pytest.raises(StoreFailed):
        private.site_of(site._replace(store=site.store.at(str(Path(site.store.path) / "absent"))), "team", after(9))
    assert not (Path(site.store.path) / "absent").exists()


def test_the_job_gets_a_copy(site: Site, owner: JobOwner, tmp_path: Path) -> None:
    for data in (b"a" * 3_000_000, b"b"):
        path = Path(private.hand_over(stored(tmp_path, data), IMAGE, owner, site, after(9)))
        assert (path, path.read_bytes()) == (Path(owner.run_directory) / NAME, data)
        assert path.stat().st_mode & 0o7777 == 0o400
    assert os.listdir(owner.run_directory) == [NAME]


def test_nothing_is_left_of_a_copy_that_failed(site: Site, owner: JobOwner, tmp_path: Path) -> None:
    gone = stored(tmp_path, b"x")._replace(path=str(tmp_path / "gone"))
    with pytest.raises(StoreFailed):
        private.hand_over(gone, IMAGE, owner, site, after(9))
    with pytest.raises(DiskFailed):
        private.hand_over(
            stored(tmp_path, b"x"), IMAGE, owner._replace(run_directory=str(tmp_path / "no")), site, after(9)
        )
    full = stored(tmp_path, b"x" * (2 << 20))
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, hard))
    try:
        with pytest.raises(DiskFailed, match="File too large"):
            private.hand_over(full, IMAGE, owner, site, after(9))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert os.listdir(owner.run_directory) == []
