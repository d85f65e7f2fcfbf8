"""Which images a prefetch asks for."""

from __future__ import annotations

import json
import os
import time

import pytest

from tests.lib.node import Node
from tests.lib.superblocks import image
from warmstart.errand import Errands
from warmstart.host import detached
from warmstart.host.deadline import after
from warmstart.images import choice
from warmstart.images.importers.base import ImageNotFound
from warmstart.images.imports import requests
from warmstart.images.imports.requests import IMPORTS, ImportRequest
from warmstart.images.reference import parse
from warmstart.images.store import layout, published
from warmstart.images.store.client import ImageStoreClient
from warmstart.images.store.layout import ImageQuery
from warmstart.images.store.published import RememberedFailure
from warmstart.paths import NodePaths
from warmstart.policy.compiled import Condition, Credentials, PrivateRepository
from warmstart.wings.prefetch import work
from warmstart.wings.prefetch.work import FAILED, PRESENT, REQUESTED

DIGEST = f"sha256:{'ab' * 32}"
IMAGE = "reg.example.com/a:1"


@pytest.fixture
def site(node: Node, monkeypatch: pytest.MonkeyPatch) -> Node:
    """Give a site that keeps an image in the store, and starts no imports."""
    monkeypatch.setattr(detached, "start", lambda *_, **__: None)
    keep(node, IMAGE)
    return node


def keep(site: Node, *images: str) -> None:
    """Have the policy keep these images in the store."""
    site.write(site.policy._replace(own={work.KEY: [f"docker://{image}" for image in images]}))


def here(site: Node) -> NodePaths:
    """Return the directories of this host, which no hook has run on."""
    return site.installation.node(os.uname().nodename.partition(".")[0])


def run(site: Node) -> list[str]:
    """Run the command; return the results."""
    return [row["result"] for row in site.json("prefetch")["images"]]


def written(site: Node) -> list[ImportRequest]:
    """Return the requests that there are."""
    return [request for _, request in requests.waiting(here(site))]


def publish(site: Node, age_s: float) -> None:
    """Put the image into the store; its tag was resolved so long ago."""
    kind = f"{os.uname().machine}.{choice.recipe(site.policy.images.importer)}"
    query = ImageQuery(parse(IMAGE), kind, layout.key_of(parse(IMAGE).canonical()), "", 0.0)
    (site.store / "images").mkdir(exist_ok=True)
    (site.store / "images" / f"{layout.image_name(DIGEST, kind)}.sqsh").write_bytes(image())
    with ImageStoreClient.of(site.policy.store_user, site.policy.paths.store) as store:
        store.run(after(60), published.point, query.key, DIGEST, time.time() - age_s, "test")


def test_private_images_come_from_their_own_store(site: Node) -> None:
    private = PrivateRepository("team", "reg.example.com/team/app", (Condition("user", ("alice",)),))
    images = site.policy.images._replace(credentials=Credentials("/etc/auth.json", (private,)))
    policy = site.policy._replace(images=images, own={work.KEY: ["reg.example.com/team/app:1", IMAGE]})
    assert list(work.wanted(policy)) == [(parse("reg.example.com/team/app:1"), "team"), (parse(IMAGE), "")]
    site.write(policy)
    assert run(site) == [REQUESTED, REQUESTED]
    assert sorted(request.private for request in written(site)) == ["", "team"]


def test_a_request_is_nobodys(site: Node) -> None:
    assert [run(site), run(site)] == [[REQUESTED]] * 2
    (request,) = written(site)
    assert (request.reference, request.user, request.uid, request.job_id) == (IMAGE, "", -1, 0)
    assert site.installation.nodes() == [os.path.basename(here(site).root)]  # maintenance takes care of its requests


@pytest.mark.parametrize(("age", "result"), [(0.4, PRESENT), (0.6, REQUESTED), (1.1, REQUESTED)])
def test_the_policys_images_are_kept_fresh_and_in_use(site: Node, age: float, result: str) -> None:
    """The registry is asked again in the second half of a tag's life; what is there is marked once a day."""
    publish(site, site.policy.images.tag_ttl * age)
    assert run(site) == [result]
    assert len(list(site.store.glob("images/used/*/*"))) == (result == PRESENT)
    asked = [time.time() - request.fresh_after for request in written(site)]
    assert asked == pytest.approx([site.policy.images.tag_ttl / 2] * (result == REQUESTED), abs=60)


@pytest.mark.parametrize(("age", "uid", "result"), [(60, -1, FAILED), (60, 2001, REQUESTED), (3700, -1, REQUESTED)])
def test_what_has_failed_waits_an_hour(site: Node, age: float, uid: int, result: str) -> None:
    """So that no registry is asked in vain each time; a user's own failure does not count."""
    assert run(site) == [REQUESTED]
    (request,) = written(site)
    Errands(here(site), IMPORTS).drop(request.key)
    failure = RememberedFailure.of(ImageNotFound(image=IMAGE))._replace(uid=uid)
    requests.remember_failure(here(site), request.image, failure)
    note = os.path.join(here(site).imports, f"{request.image}.failed")
    with open(note, encoding="ascii") as file:
        content = json.load(file)
    with open(note, "w", encoding="ascii") as file:
        json.dump(content | {"at": time.time() - age}, file)
    assert run(site) == [result]


def test_the_command(site: Node) -> None:
    shown = site.command("prefetch")
    assert (shown.exit_code, REQUESTED in shown.stdout, IMAGE in shown.stdout) == (0, True, True)
    assert [event["images"] for event in site.events("image.prefetched")] == [[IMAGE]]
    publish(site, 0.0)
    assert run(site) == [PRESENT]
    assert len(site.events("image.prefetched")) == 1


def test_it_does_nothing_while_warmstart_is_off(site: Node) -> None:
    """As the import that it would start."""
    with open(site.installation.off_switch, "w", encoding="ascii"):
        pass
    done = site.command("prefetch")
    assert (done.exit_code, "switched off by" in done.stderr) == (0, True)
    assert written(site) == []
