"""What other nodes of a job make of a head node that says that it has no image, or nothing at all."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.lib import image_site
from tests.lib.runs import a_record
from tests.lib.superblocks import image
from warmstart.errors import ResourceError
from warmstart.host.deadline import Deadline, after
from warmstart.host.identity import Identity
from warmstart.images import agreed
from warmstart.images.agreed import HeadHasNone, HeadImage, Heads
from warmstart.images.imports.job_end import JobOver
from warmstart.images.query import Site
from warmstart.images.reference import parse
from warmstart.store.client import StoreClient
from warmstart.store.meeting import Meeting

HEX = "ab" * 32
DIGEST = f"sha256:{HEX}"
TAG = parse("reg.io/a:1")
NAME = TAG.canonical()


class Full(ResourceError):
    """Of the head node alone."""

    code = "full-for-a-test"
    template = "no room on {disk}"


@pytest.fixture
def site(tmp_path: Path) -> Site:
    """Return a site with an image whose digest is known, and no tag."""
    images = tmp_path / "store" / "images"
    images.mkdir(parents=True)
    (images / f"{HEX}.{image_site.KIND}.sqsh").write_bytes(image())
    return image_site.site(tmp_path / "store", tmp_path / "workspace")


def heads(site: Site, node: str) -> Heads:
    """Return a node's part in job 7 on n1 and n2, with the worker of the site."""
    store = StoreClient(Identity("nobody", 65534, 65534), site.store.path, f"{node}-0a1b2c3d")
    store.worker = site.store.worker
    return Heads(store, a_record(node=node, head=node == "n1"), Meeting("test.7.0", "images", "n[1-2]"))


def no_end() -> Callable[[Deadline], bool]:
    """Fail, for a wait that is too short to look whether the job is over."""
    raise AssertionError("looks")


@pytest.mark.parametrize(
    ("said", "problem"),
    [
        (agreed.failed(Full(disk="/var")), "no room on /var"),
        (HeadImage(code="of-a-later-release", text="who knows"), "who knows"),
        (HeadImage(digest="../../etc/passwd"), "it named none"),
        (None, "it did not look for it"),
    ],
)
def test_a_failure_of_the_head_alone_leaves_the_others_without_it(
    site: Site, said: HeadImage | None, problem: str
) -> None:
    with pytest.raises(HeadHasNone) as raised:
        heads(site, "n2").obtain(said, TAG, site, after(5))
    assert str(raised.value).endswith(problem)


def test_who_waits_for_long_hears_that_the_job_is_over(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agreed, "ALONE_S", 0.0)
    begun: list[int] = []

    def job_end() -> Callable[[Deadline], bool]:
        begun.append(0)
        answers = iter([False, False, True])
        return lambda _: next(answers)

    with pytest.raises(JobOver, match=r"while it waited for image reg\.io/a:1"):
        heads(site, "n2").word(NAME, job_end, after(5))
    assert begun == [0]


def test_the_head_gives_up_before_the_others() -> None:
    assert 214 < agreed.earlier(after(220)).left() <= 215
    assert 0.8 < agreed.earlier(after(1)).left() <= 0.9
