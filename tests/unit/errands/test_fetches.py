"""Bundles that did not come in time are fetched: what becomes of each, and who is told."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from tests.support.bundles import ASKER, publish
from tests.support.entry_site import NODE, EntrySite
from warmstart.entry import background
from warmstart.errand import Errands, at_work
from warmstart.host import process
from warmstart.policy.compiled import Wing
from warmstart.seed.wanted import FETCHES, Wanted
from warmstart.store import bundles
from warmstart.store.bundles import Offer

ABOUT = {"profile": "numba", "namespace": "ns", "scope": "user-1"}


@pytest.fixture(autouse=True)
def busy(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave the priority of the tests as it is."""
    monkeypatch.setattr(process, "be_idle", lambda: None)


@pytest.fixture
def site(entry_site: EntrySite) -> EntrySite:
    """Return an installation with a node that hooks have used."""
    for directory in (entry_site.paths.state, entry_site.paths.bundles):
        os.makedirs(directory, mode=0o700)
    return entry_site


def offered(site: EntrySite, content: bytes = b"squashfs") -> Offer:
    """Publish a bundle; return what jobs are offered of it."""
    made = publish(site.store, "a", content=content)
    found = bundles.offers(str(site.store), ["user-1"], "numba", "ns", "n1-test")
    return next(offer for offer in found.offers if offer.bundle == made.bundle)


def want(site: EntrySite, offer: Offer, **changes: Any) -> None:  # noqa: ANN401 - fields of Wanted
    """Have a bundle fetched, as a prolog of job 7 does."""
    item = Wanted(offer.sha256, offer.size, "user-1", "numba", "ns", offer.bundle, ASKER)._replace(**changes)
    assert Errands(site.paths, FETCHES).add(item.scope, item.sha256, item)


def run(site: EntrySite) -> int:
    """Run the program."""
    return background.main(site.installation.prefix, [FETCHES.name, NODE])


def there(site: EntrySite) -> set[str]:
    """Return what the node has of bundles, without their hashes."""
    return {name.partition(".")[2] for name in os.listdir(site.paths.bundles)}


def waiting(site: EntrySite) -> int:
    """Return how many bundles are wanted."""
    return len(Errands(site.paths, FETCHES).all())


def test_what_is_wanted_is_fetched(site: EntrySite) -> None:
    """The audit says so under the job that asked; a second run finds nothing to do."""
    offer = offered(site)
    want(site, offer)
    assert (run(site), run(site)) == (0, 0)
    assert (there(site), waiting(site)) == ({"sqsh", "files.json", "origin.json"}, 0)
    (event,) = site.events("bundle.fetched")
    assert {name: event[name] for name in ABOUT} == ABOUT
    assert (event["bundle"], event["size"], event["attempt"]) == (offer.bundle, offer.size, 1)
    assert (event["job_id"], event["user"], event["done_by"]) == (7, "ws-alice", {"hook": "background"})


def test_what_is_gone_is_not_tried_again(site: EntrySite) -> None:
    """What the store offers to nobody, is not needed by anybody."""
    offer = offered(site)
    want(site, offer, bundle="20200101T000000.000000Z-0123456789abcdef", sha256="cd" * 32)
    assert run(site) == 0
    assert (there(site), waiting(site)) == (set(), 0)
    (event,) = site.events("bundle.fetch-failed")
    assert (event["error"]["code"], event["again"]) == ("bundle-gone", False)


def test_what_failed_is_tried_later(site: EntrySite) -> None:
    """A store that is away, a damaged bundle: not at once, however often the program is started."""
    offer = offered(site)
    want(site, offer)
    (stored,) = site.store.rglob("*.sqsh")
    stored.chmod(0o600)
    stored.write_bytes(b"x" * offer.size)
    assert (run(site), run(site)) == (0, 0)
    assert (there(site), waiting(site)) == (set(), 1)
    (event,) = site.events("bundle.fetch-failed")
    assert (event["error"]["code"], event["again"], event["attempt"]) == ("bundle-damaged", True, 1)


def test_limits_are_those_of_the_policy_in_force(site: EntrySite) -> None:
    """They may have been lowered since a job asked."""
    want(site, offered(site))
    site.write(site.policy._replace(seed=site.policy.seed._replace(max_fetch=7)))
    run(site)
    (event,) = site.events("bundle.fetch-failed")
    assert (event["error"]["code"], waiting(site)) == ("fetch-over-budget", 1)


def test_one_process_of_a_node_fetches(site: EntrySite) -> None:
    """So that the rate is the node's."""
    want(site, offered(site))
    with at_work(site.paths, FETCHES.name):
        assert run(site) == 0
    assert (there(site), waiting(site)) == (set(), 1)


@pytest.mark.threat(41)
def test_scopes_take_turns(site: EntrySite) -> None:
    """One that wants many keeps no other waiting, also where each of its bundles comes at once."""
    offer = offered(site)
    for number in range(3):
        want(site, offer, sha256=f"{number:064}")
    want(site, offer, sha256="f" * 64, scope="user-2")
    run(site)
    assert [event["scope"] for event in site.events("bundle.fetch-failed")] == ["user-1", "user-2", "user-1", "user-1"]


def test_a_damaged_wish_goes(site: EntrySite) -> None:
    """The next job asks again."""
    want(site, offered(site))
    errands = Errands(site.paths, FETCHES)
    (item,) = errands.all()
    Path(errands.directory, item.name).write_bytes(b"{")
    assert run(site) == 0
    assert (there(site), waiting(site)) == (set(), 0)


def test_a_whole_is_bounded_by_its_own_quota_alone(site: EntrySite) -> None:
    """Neither by what a job's caches may take nor by what a node keeps of them; and none of these goes for it."""
    made = publish(site.store, "a", content=b"squashfs", profile="whole-things")
    (offer,) = bundles.offers(str(site.store), ["user-1"], "whole-things", "ns", "n1-test").offers
    assert offer.bundle == made.bundle
    cache = Path(site.paths.bundles, f"{'ab' * 32}.sqsh")
    cache.write_bytes(b"x" * 7)
    os.utime(cache, (1, 1))
    things = Wing("things", used=True, step="", early=False, end="")
    policy = site.policy._replace(seed=site.policy.seed._replace(max_fetch=7, keep=7))
    for keep, fetched in ((7, False), (offer.size, True)):
        site.write(policy._replace(wings=(things._replace(keep=keep),)))
        want(site, offer, profile="whole-things")
        run(site)
        assert os.path.exists(f"{site.paths.bundles}/{offer.sha256}.sqsh") is fetched
        Errands(site.paths, FETCHES).drop(offer.sha256)
    (failed,) = site.events("bundle.fetch-failed")
    assert "more than a node keeps of its kind" in failed["error"]["reason"]
    assert cache.exists()
