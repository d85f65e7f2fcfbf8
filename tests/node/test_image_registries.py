"""Registries that fail, in front of a store that refuses root: each failure has its class and leaves nothing partial.

A job whose image is in the store gets it, whatever the registry answers to the question what its tag means now. Unless
the answer is clear: gone, forbidden, or another image, which is the wrong one to leave out.
"""

from __future__ import annotations

import json
import re
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from typing import NamedTuple

import pytest

from tests.lib.accounts import IMPORT
from tests.lib.image_place import Place, Store, files, leftovers, published_files
from tests.lib.image_site import RULES
from tests.lib.nonsense import PAGE, Answer, Relay, relayed
from tests.lib.registry import build_image
from warmstart.errors import WarmstartError
from warmstart.host.deadline import after
from warmstart.images.importers.base import (
    ImageForbidden,
    ImageNotFound,
    RegistryAnswerUnusable,
    RegistryUnreachable,
)
from warmstart.images.importers.oci import Oci
from warmstart.images.imports import making
from warmstart.images.query import Site
from warmstart.images.reference import Reference, parse
from warmstart.images.store import published
from warmstart.images.store.published import RememberedFailure

EXPIRED = RULES._replace(tag_ttl=0)
MANIFEST = r"GET .*/manifests/1"
MANIFESTS = r"GET .*/manifests/.*"
BLOBS = r"GET .*/blobs/.*"
DENIED = b'{"errors": [{"code": "DENIED", "message": "denied"}]}'
UNKNOWN = b'{"errors": [{"code": "MANIFEST_UNKNOWN", "message": "manifest unknown"}]}'
JSON = (("Content-Type", "application/json"),)


@pytest.mark.parametrize(
    ("asked", "answer", "kind"),
    [
        (r"GET .*", Answer(401), ImageForbidden),
        (MANIFEST, Answer(403), ImageForbidden),
        (MANIFEST, Answer(404), ImageNotFound),
        (r"GET .*", Answer(429), RegistryUnreachable),
        (r"GET .*", Answer(503), RegistryUnreachable),
        (MANIFEST, Answer(200, PAGE), RegistryAnswerUnusable),
        (MANIFEST, Answer(200, PAGE, missing=1000), RegistryUnreachable),
        ("", Answer(0), RegistryUnreachable),
    ],
    ids=["401", "403", "404", "429", "503", "page", "cut", "silent"],
)
def test_each_failure_has_its_class(
    place: Place, store: Store, asked: str, answer: Answer, kind: type[WarmstartError]
) -> None:
    """The user's mistake, an outage, or garbage. The store has the failure; a refusal counts for the next one, too."""
    with ExitStack() as stack:
        relay = stack.enter_context(relayed(place.registry.url))
        stack.enter_context(relay.saying({asked: answer}) if asked else place.registry.silent())
        host = relay.url if asked else place.registry.url
        site = place.site(store.path, importer=partial(Oci, place.identity(IMPORT), (host,)))
        patience = after(3 if kind is RegistryUnreachable else 60)  # what is tried again takes all of it
        with pytest.raises(kind):
            making.obtain(parse(f"{host}/team/tool:1"), site, patience)
    assert leftovers(store.source) == []
    assert place.left_in_scratch() == []
    assert published_files(store.source) == []
    (failure,) = (json.loads((store.source / name).read_text()) for name in files(store.source))
    counts = published.is_definitive(RememberedFailure(**failure))
    assert counts == (kind in (ImageForbidden, ImageNotFound))


class Known(NamedTuple):
    """A tag that is in the store, behind a relay."""

    relay: Relay
    reference: Reference
    name: str  # in its registry
    digest: str
    site: Site  # whose tags are always expired


@pytest.fixture
def known(place: Place, store: Store, request: pytest.FixtureRequest) -> Iterator[Known]:
    name = "known/" + re.sub(r"\W+", "-", request.node.name.lower()).strip("-")[:60].strip("-")
    digest = place.registry.push(place.layout, "latest", f"{name}:1")
    with relayed(place.registry.url) as relay:
        reference = parse(f"{relay.url}/{name}:1")
        site = place.site(store.path, importer=partial(Oci, place.identity(IMPORT), (relay.url,)))
        assert making.obtain(reference, site, after(60)).digest == digest
        yield Known(relay, reference, name, digest, site._replace(rules=EXPIRED))


def altered(place: Place, known: Known) -> Answer:
    """Return the manifest with a byte more, as a broken proxy gives it: its digest names nothing."""
    kind = "application/vnd.oci.image.manifest.v1+json"
    request = urllib.request.Request(
        f"http://{place.registry.url}/v2/{known.name}/manifests/1", headers={"Accept": kind}
    )
    with urllib.request.urlopen(request, timeout=10) as answer:
        return Answer(200, answer.read() + b"\n", (("Content-Type", kind),))


def move(place: Place, known: Known) -> str:
    layout = build_image(place.base / known.name.replace("/", "-"), {"/v": known.name})
    return place.registry.push(layout, "latest", f"{known.name}:1")


@pytest.mark.parametrize(
    ("asked", "answer"),
    [
        (MANIFEST, Answer(200, PAGE)),
        (r"GET .*", Answer(200, PAGE)),
        (MANIFEST, Answer(200, b"{}", JSON)),
        (MANIFEST, Answer(307, headers=(("Location", "http://127.0.0.1:1/"),))),
        (MANIFEST, Answer(418)),
        (r"GET /v2/", Answer(404, PAGE)),
        (r"GET /v2/", Answer(403, PAGE)),
        (MANIFEST, None),  # one that its registry does not have
    ],
    ids=["page", "page-everywhere", "no-manifest", "redirect", "teapot", "no-registry", "fenced-off", "altered"],
)
def test_nonsense_leaves_the_last_image(place: Place, known: Known, asked: str, answer: Answer | None) -> None:
    """A maintenance page, a redirect to where nobody answers, a proxy that knows no registry: nothing new is known."""
    with known.relay.saying({asked: answer or altered(place, known)}):
        image = making.obtain(known.reference, known.site, after(60))
    assert (image.digest, image.how) == (known.digest, "stale")
    assert known.reference.canonical() in image.reason
    assert making.obtain(known.reference, known.site, after(60)).how == "reused"


@pytest.mark.real_time
def test_a_silent_registry_leaves_the_last_image(place: Place, known: Known, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(making, "RESOLVE_KNOWN_S", 1.0)
    with place.registry.silent():
        found = making.obtain(known.reference, known.site, after(30))
    assert (found.digest, found.how) == (known.digest, "stale")
    assert "no answer in time" in found.reason


def test_a_tag_is_resolved_without_its_configuration(known: Known) -> None:
    known.relay.asked.clear()
    with known.relay.saying({BLOBS: Answer(200, PAGE)}):
        assert making.obtain(known.reference, known.site, after(60)).how == "reused"
    assert [asked for asked in known.relay.asked if "/v2/known/" in asked] == [f"GET /v2/{known.name}/manifests/1"]


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (Answer(404, UNKNOWN, JSON), ImageNotFound),
        (Answer(404, PAGE), ImageNotFound),
        (Answer(401, DENIED, JSON), ImageForbidden),
        (Answer(403, DENIED, JSON), ImageForbidden),
    ],
    ids=["unknown", "gone", "unauthorized", "forbidden"],
)
def test_a_clear_answer_is_believed(known: Known, answer: Answer, error: type[WarmstartError]) -> None:
    """No such tag, or no access to it: the last image is not given away."""
    with known.relay.saying({MANIFEST: answer}), pytest.raises(error):
        making.obtain(known.reference, known.site, after(60))


@pytest.mark.parametrize(
    ("asked", "answer"),
    [
        (BLOBS, Answer(200, b"x" * 100, ())),
        (BLOBS, Answer(404, b'{"errors": [{"code": "BLOB_UNKNOWN", "message": "blob unknown"}]}', JSON)),
        (BLOBS, Answer(403, DENIED, JSON)),
        (BLOBS, Answer(307, headers=(("Location", "http://127.0.0.1:1/"),))),
    ],
    ids=["corrupt", "missing", "forbidden", "redirect"],
)
def test_a_new_image_that_cannot_be_had_fails_the_job(
    place: Place, known: Known, store: Store, asked: str, answer: Answer
) -> None:
    """The old one would silently be the wrong code. Both digests are said; nothing is remembered as definitive."""
    new = move(place, known)
    with known.relay.saying({asked: answer}), pytest.raises(WarmstartError) as raised:
        making.obtain(known.reference, known.site, after(60))
    text = str(raised.value)
    assert known.reference.canonical() in text.partition(";")[0]  # the name that was asked for
    assert new in text
    assert f"{known.reference.registry}/{known.name}@{known.digest}" in text
    assert "does not exist" not in text
    (failed,) = (store.source / "images" / "failed").iterdir()
    assert not published.is_definitive(RememberedFailure(**json.loads(failed.read_text())))
    image = making.obtain(known.reference, known.site, after(60))
    assert (image.digest, image.how) == (new, "imported")


@pytest.mark.threat(11)
def test_who_names_a_digest_gets_that_or_nothing(place: Place, known: Known, store: Store) -> None:
    """Though the registry, or a proxy, gives another image for it: whoever names a digest wants those bytes."""
    wanted = parse(f"{known.relay.url}/{known.name}@{move(place, known)}")
    with (
        known.relay.saying({MANIFESTS: altered(place, known)}),
        pytest.raises(RegistryAnswerUnusable, match=f"{wanted.digest}: .* another manifest"),
    ):
        making.obtain(wanted, known.site, after(60))
    assert not list((store.source / "images").glob(f"*{wanted.digest[7:]}*"))
    assert making.obtain(wanted, known.site, after(60)).digest == wanted.digest


def test_an_unknown_image_of_a_broken_registry(place: Place, known: Known, store: Store) -> None:
    fresh = parse(f"{known.relay.url}/{known.name}@{move(place, known)}")
    with known.relay.saying({BLOBS: Answer(404, UNKNOWN, JSON)}), pytest.raises(WarmstartError) as raised:
        making.obtain(fresh, known.site, after(60))
    assert raised.value.code == "registry-answer-unusable"
    (failed,) = (store.source / "images" / "failed").iterdir()
    assert not published.is_definitive(RememberedFailure(**json.loads(failed.read_text())))
    with known.relay.saying({MANIFESTS: Answer(404, UNKNOWN, JSON)}), pytest.raises(ImageNotFound):
        making.obtain(fresh, known.site, after(60))
