"""`warmstart prefetch`: which images it asks for, and what the policy says of them."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest

from tests.lib.node import Node
from tests.lib.policy_site import MINIMAL, Compile
from tests.lib.superblocks import image
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
from warmstart.policy import load
from warmstart.policy.document import PolicyInvalid
from warmstart.policy.keys import Credentials, Match, PrivateRepository
from warmstart.queue import Queue
from warmstart.wings.prefetch import work
from warmstart.wings.prefetch.work import FAILED, PRESENT, REQUESTED

DIGEST = f"sha256:{'ab' * 32}"
IMAGE = "reg.example.com/a:1"


@pytest.fixture
def kept(node: Node, monkeypatch: pytest.MonkeyPatch) -> Node:
    """Give a site that keeps an image in the store, and starts no imports."""
    monkeypatch.setattr(detached, "start", lambda *_, **__: None)
    keep(node, IMAGE)
    return node


def keep(node: Node, *images: str) -> None:
    """Have the policy keep these images in the store."""
    node.write(node.policy._replace(own={work.KEY: {"images": [f"docker://{image}" for image in images]}}))


def here(kept: Node) -> NodePaths:
    """Return the directories of this host, which no hook has run on."""
    return kept.installation.node(os.uname().nodename.partition(".")[0])


def run(kept: Node) -> list[str]:
    """Run the command; return the results."""
    return [row["result"] for row in kept.json("prefetch")["images"]]


def written(kept: Node) -> list[ImportRequest]:
    return [request for _, request in requests.waiting(here(kept))]


def publish(kept: Node, age_s: float) -> None:
    """Put the image into the store; its tag was resolved so long ago."""
    kind = f"{os.uname().machine}.{choice.recipe(kept.policy.images.importer)}"
    query = ImageQuery(parse(IMAGE), kind, layout.key_of(parse(IMAGE).canonical()), "", 0.0)
    (kept.store / "images").mkdir(exist_ok=True)
    (kept.store / "images" / f"{layout.image_name(DIGEST, kind)}.sqsh").write_bytes(image())
    store = ImageStoreClient.of(kept.policy.store_user, kept.policy.paths.store)
    store.run(after(60), published.point, query.key, DIGEST, time.time() - age_s, "test")


def test_private_images_come_from_their_own_store(kept: Node) -> None:
    private = PrivateRepository("team", "reg.example.com/team/app", Match(user=("alice",)))
    images = kept.policy.images._replace(credentials=Credentials("/etc/auth.json", (private,)))
    policy = kept.policy._replace(images=images, own={work.KEY: {"images": ["reg.example.com/team/app:1", IMAGE]}})
    assert list(work.wanted(policy)) == [(parse("reg.example.com/team/app:1"), "team"), (parse(IMAGE), "")]
    kept.write(policy)
    assert run(kept) == [REQUESTED, REQUESTED]
    assert sorted(request.private for request in written(kept)) == ["", "team"]


def test_a_request_is_nobodys(kept: Node) -> None:
    assert [run(kept), run(kept)] == [[REQUESTED]] * 2
    (request,) = written(kept)
    assert (request.reference, request.user, request.uid, request.job_id) == (IMAGE, "", -1, 0)
    assert kept.installation.nodes() == [os.path.basename(here(kept).root)]  # maintenance takes care of its requests


@pytest.mark.parametrize(("age", "result"), [(0.4, PRESENT), (0.6, REQUESTED), (1.1, REQUESTED)])
def test_the_policys_images_are_kept_fresh_and_in_use(kept: Node, age: float, result: str) -> None:
    """The registry is asked again in the second half of a tag's life; what is there is marked once a day."""
    publish(kept, kept.policy.images.tag_ttl * age)
    assert run(kept) == [result]
    assert len(list(kept.store.glob("images/used/*/*"))) == (result == PRESENT)
    asked = [time.time() - request.fresh_after for request in written(kept)]
    assert asked == pytest.approx([kept.policy.images.tag_ttl / 2] * (result == REQUESTED), abs=60)


@pytest.mark.parametrize(("age", "uid", "result"), [(60, -1, FAILED), (60, 2001, REQUESTED), (3700, -1, REQUESTED)])
def test_what_has_failed_waits_an_hour(kept: Node, age: float, uid: int, result: str) -> None:
    """So that no registry is asked in vain each time; a user's own failure does not count."""
    assert run(kept) == [REQUESTED]
    (request,) = written(kept)
    Queue(here(kept), IMPORTS).drop(request.key)
    failure = RememberedFailure.of(ImageNotFound(image=IMAGE))._replace(uid=uid)
    requests.remember_failure(here(kept), request.image, failure)
    note = os.path.join(here(kept).imports, f"{request.image}.failed")
    with open(note, encoding="ascii") as file:
        content = json.load(file)
    with open(note, "w", encoding="ascii") as file:
        json.dump(content | {"at": time.time() - age}, file)
    assert run(kept) == [result]


def test_the_command(kept: Node) -> None:
    shown = kept.command("prefetch")
    assert (shown.exit_code, REQUESTED in shown.stdout, IMAGE in shown.stdout) == (0, True, True)
    assert [event["images"] for event in kept.events("image.prefetched")] == [[IMAGE]]
    publish(kept, 0.0)
    assert run(kept) == [PRESENT]
    assert len(kept.events("image.prefetched")) == 1


def test_it_does_nothing_while_warmstart_is_off(kept: Node) -> None:
    """As the import that it would start."""
    with open(kept.installation.off_switch, "w", encoding="ascii"):
        pass
    done = kept.command("prefetch")
    assert (done.exit_code, "switched off by" in done.stderr) == (0, True)
    assert written(kept) == []


def test_a_prefetch_tells_that_the_policy_was_rejected(node: Node) -> None:
    """It works by the last good one, which may not name the images that the edit adds."""
    done = node.command("prefetch")
    assert (done.exit_code, done.stderr) == (0, "")
    file = Path(node.installation.policy)
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("")
    node.write(node.policy._replace(signature=load.signature(str(file))))
    file.write_text("registeries: []\n")
    refused = node.command("prefetch")
    assert (refused.exit_code, "registeries: unknown key" in refused.stderr) == (1, True)


def test_images_of_other_registries_are_refused(compiled_of: Compile) -> None:
    with pytest.raises(PolicyInvalid, match=r"3:21: prefetch\.images\[0\]: registry a\.org is not in"):
        compiled_of(f"{MINIMAL}prefetch: {{images: [docker://a.org/b]}}\n")


def test_the_compiled_policy_has_them(compiled_of: Compile) -> None:
    used = compiled_of(f"{MINIMAL}images: {{registries: [a.org]}}\nprefetch: {{images: [docker://a.org/b]}}\n")
    assert used.own == {"prefetch": {"images": ["docker://a.org/b"]}}
    for policy, is_used in ((used, True), (compiled_of(MINIMAL), False)):
        assert [known.used for known in policy.wings if known.name == "prefetch"] == [is_used]
