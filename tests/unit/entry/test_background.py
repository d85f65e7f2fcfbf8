"""What hooks had no time for, done off the clock of jobs: what becomes of it, and who is told."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from tests.support.bundles import ASKER, publish
from tests.support.entry_site import NODE, EntrySite
from warmstart.entry import background
from warmstart.host import files, process
from warmstart.host.files import opened_dir
from warmstart.seed import wanted
from warmstart.seed.wanted import Wanted
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
    item = Wanted(offer.sha256, offer.size, "user-1", "numba", "ns", offer.bundle, ASKER, 1000.0)
    with opened_dir(site.paths.bundles) as fd:
        assert wanted.add(fd, item._replace(**changes))


def run(site: EntrySite, what: str = wanted.FETCHES, node: str = NODE) -> int:
    """Run the program."""
    return background.main(site.installation.prefix, [what, node])


def there(site: EntrySite) -> set[str]:
    """Return what the node has of bundles, without their hashes."""
    return {name.partition(".")[2] for name in os.listdir(site.paths.bundles)}


def test_what_is_wanted_is_fetched(site: EntrySite) -> None:
    """The audit says so under the job that asked; a second run finds nothing to do."""
    offer = offered(site)
    want(site, offer)
    assert (run(site), run(site)) == (0, 0)
    assert there(site) == {"sqsh", "files.json", "origin.json"}
    (event,) = site.events("bundle.fetched")
    assert {name: event[name] for name in ABOUT} == ABOUT
    assert (event["bundle"], event["size"], event["attempt"]) == (offer.bundle, offer.size, 1)
    assert (event["job_id"], event["user"], event["done_by"]) == (7, "ws-alice", {"hook": "background"})


def test_what_is_gone_is_not_tried_again(site: EntrySite) -> None:
    """What the store offers to nobody, is not needed by anybody."""
    offer = offered(site)
    want(site, offer, bundle="20200101T000000.000000Z-0123456789abcdef", sha256="cd" * 32)
    assert run(site) == 0
    assert there(site) == set()
    (event,) = site.events("bundle.fetch-failed")
    assert (event["error"]["code"], event["again"]) == ("bundle-not-offered", False)


def test_what_failed_is_tried_later(site: EntrySite) -> None:
    """A store that is away, a damaged bundle: not at once, however often the program is started."""
    offer = offered(site)
    want(site, offer)
    (stored,) = site.store.rglob("*.sqsh")
    stored.chmod(0o600)
    stored.write_bytes(b"x" * offer.size)
    assert (run(site), run(site)) == (0, 0)
    assert there(site) == {"wanted.json"}
    (event,) = site.events("bundle.fetch-failed")
    assert (event["error"]["code"], event["again"], event["attempt"]) == ("bundle-damaged", True, 1)


def test_limits_are_those_of_the_policy_in_force(site: EntrySite) -> None:
    """They may have been lowered since a job asked."""
    want(site, offered(site))
    site.write(site.policy._replace(seed=site.policy.seed._replace(max_fetch=7)))
    run(site)
    (event,) = site.events("bundle.fetch-failed")
    assert (event["error"]["code"], there(site)) == ("fetch-over-budget", {"wanted.json"})


def test_one_process_of_a_node_fetches(site: EntrySite) -> None:
    """So that the rate is the node's."""
    want(site, offered(site))
    with files.opened_lock(site.paths.locks, wanted.FETCHES) as fd:
        assert files.try_flock(fd)
        assert run(site) == 0
    assert there(site) == {"wanted.json"}


def test_it_does_nothing_that_nobody_asked_for(site: EntrySite, capsys: pytest.CaptureFixture[str]) -> None:
    """On no node of another host, and nowhere while warmstart is off."""
    want(site, offered(site))
    assert [run(site, "all"), run(site, node="n2"), run(site, node="../n1")] == [background.WRONG_USAGE] * 3
    assert "usage: background" in capsys.readouterr().err
    Path(site.installation.off_switch).touch()
    assert run(site) == 0
    assert there(site) == {"wanted.json"}
