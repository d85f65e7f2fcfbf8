"""Two or three configurations that a tool takes for one: who dies of the other's entries, and that it ends."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.bundles import OWNER, draft, namespace
from warmstart.repack import parts as repack_parts
from warmstart.store import bundles, evidence, index, maintenance, parts
from warmstart.store.bundles import REPLACED, SET_ASIDE
from warmstart.store.index import Evidence, Suspicion
from warmstart.store.manifest import Draft, File

OWN, SITE = "user-1-a", "site"
DAY, WEEK = 86400.0, 7 * 86400.0
NOW = 1_800_000_000.0
KEY = "k"  # the name of which the tool leaves out what matters


def suspicion(name: str = "1.aa", *, began: float = NOW - 20, at: float = NOW, seeded: str = "v1") -> Suspicion:
    """Return what a job leaves that died 20 s after a warm start."""
    return Suspicion(name, 1, 20.0, began, at, seeded, WEEK)


OPEN = Evidence(suspicion())
HELD = Evidence(suspicion()._replace(survived=True))


@pytest.mark.parametrize(
    ("before", "now", "after"),
    [
        (Evidence(), NOW, "2.bb"),
        (OPEN, NOW + 60, "1.aa"),
        (OPEN, NOW + DAY, "2.bb"),  # nobody settled it
        (Evidence(acquitted="v1"), NOW, ""),
        (Evidence(acquitted="v0"), NOW, "2.bb"),  # what is seeded has changed
        (Evidence(settled=NOW - 19), NOW, ""),  # the job began before that
        (Evidence(settled=NOW - 21), NOW, "2.bb"),
    ],
)
def test_what_opens_a_suspicion(before: Evidence, now: float, after: str) -> None:
    """A death after a warm start, unless it is known better. While one is open, it stays the same."""
    found = evidence.suspected(suspicion("2.bb", at=now), before, now).opened(now)
    assert (found.id if found else "") == after


@pytest.mark.parametrize(
    ("before", "by", "now", "after"),
    [
        (OPEN, "1.aa", NOW + 60, Evidence(acquitted="v1", settled=NOW + 60)),
        (OPEN, "0.zz", NOW + 60, OPEN),  # it began cold for another one
        (OPEN, "1.aa", NOW + DAY, OPEN),
        (HELD, "1.aa", NOW + 60, HELD),  # another one lives
        (Evidence(acquitted="v1"), "1.aa", NOW, Evidence(acquitted="v1")),
    ],
)
def test_what_acquits(before: Evidence, by: str, now: float, after: Evidence) -> None:
    """Of those that began cold for it the first, if it dies."""
    assert evidence.acquitted(by, before, now) == after


def test_a_survivor_that_still_runs_keeps_it_open() -> None:
    """It is told again and again, and so lasts longer than a day."""
    held = evidence.survived("1.aa", OPEN, NOW + DAY - 1)
    found = held.opened(NOW + DAY + 60)
    assert found is not None
    assert found.survived
    assert evidence.survived("0.zz", OPEN, NOW) == OPEN
    assert held.opened(NOW + 2 * DAY) is None


def test_what_a_survivor_built() -> None:
    """It takes the place once; the second time within the window neither version stays, until that is over."""

    def build(before: Evidence, now: float, bundle: str, marks: dict[str, str]) -> evidence.Settled | None:
        opened = before._replace(suspicion=suspicion(at=now))
        return evidence.settled(opened, now, suspicion="1.aa", names=[KEY, "x"], marks=marks, bundle=bundle)

    first = build(Evidence(), NOW, "b1", {})
    assert first is not None
    assert first[:] == (Evidence(settled=NOW, replaced={"b1": NOW + WEEK}), [])
    marks = {KEY: "b1"}
    second = build(first.evidence, NOW + DAY, "b2", marks)
    assert second is not None
    assert second.aside == [KEY]
    assert second.evidence.names_aside(NOW + 2 * DAY) == {KEY}
    assert second.evidence.names_aside(NOW + DAY + WEEK) == set()
    later = build(first.evidence, NOW + WEEK, "b2", marks)
    assert later is not None
    assert later.aside == []
    assert evidence.settled(OPEN, NOW, suspicion="0.zz", names=[KEY], marks={}, bundle="b") is None
    assert evidence.settled(Evidence(), NOW, suspicion="1.aa", names=[KEY], marks={}, bundle="b") is None


class Job(NamedTuple):
    """A job that runs."""

    id: str
    config: int
    began: float
    seeded: tuple[int, str]  # whose version it began with, and of which bundle; -1: none
    suspicion: str


class Site:
    """One user's namespace with one entry. A job dies of another configuration's version, after a moment."""

    def __init__(self, *, suspects: bool = True) -> None:
        """Without `suspects`, deaths say nothing: `seed.suspect` is null."""
        self.suspects = suspects
        self.now, self.count, self.deaths = NOW, 0, 0
        self.evidence = Evidence()
        self.there = (-1, "")
        self.marks: dict[str, str] = {}

    def start(self, config: int) -> Job:
        """Start a job as a prolog does."""
        self.count += 1
        found = self.evidence.opened(self.now)
        seeded = (-1, "") if found else self.there
        return Job(f"j{self.count}", config, self.now, seeded, found.id if found else "")

    def end(self, job: Job) -> None:
        """End a job as an epilog does."""
        self.now += 60
        whose, bundle = job.seeded
        if whose not in (-1, job.config):
            self.deaths += 1
            if not self.suspects:
                return
            new = Suspicion(job.id, 1, 60.0, job.began, self.now, bundle, WEEK)
            self.evidence = evidence.suspected(new, self.evidence, self.now)
            return
        if whose == job.config:
            return
        made = f"b{self.count}.{self.now:.0f}"
        settled = evidence.settled(
            self.evidence, self.now, suspicion=job.suspicion, names=[KEY], marks=self.marks, bundle=made
        )
        if settled:
            self.evidence = settled.evidence
            self.marks[KEY] = made
            self.there = (-1, "") if settled.aside else (job.config, made)
        elif self.there[0] == -1 and KEY not in self.evidence.names_aside(self.now):
            self.there = (job.config, made)


CONFIGS = st.integers(2, 3).flatmap(lambda number: st.lists(st.integers(0, number - 1), min_size=1, max_size=40))


@given(CONFIGS)
def test_jobs_that_follow_each_other_lose_two(configs: list[int]) -> None:
    """However two or three configurations take turns within the window."""
    site = Site()
    for config in configs:
        site.end(site.start(config))
    assert site.deaths <= 2


@given(CONFIGS)
def test_without_suspicion_no_end_is_seen(configs: list[int]) -> None:
    """Whoever comes with another configuration than the first one's dies, each time: what the others put an end to."""
    site = Site(suspects=False)
    for config in configs:
        site.end(site.start(config))
    assert site.deaths == sum(config != configs[0] for config in configs)


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 2), st.integers(0, 9)), max_size=60), CONFIGS)
def test_jobs_side_by_side_end_it_too(turns: list[tuple[bool, int, int]], later: list[int]) -> None:
    """Whatever started together and in whichever order it ends: those that come later lose two at most."""
    site = Site()
    running: list[Job] = []
    for starts, config, which in turns:
        if starts or not running:
            running.append(site.start(config))
        else:
            site.end(running.pop(which % len(running)))
    for job in running:
        site.end(job)
    before = site.deaths
    for config in later:
        site.end(site.start(config))
    assert site.deaths - before <= 2


@contextmanager
def some_bytes() -> Iterator[int]:
    """Open a file of random bytes."""
    fd = os.memfd_create("bundle")
    try:
        os.write(fd, os.urandom(8))
        yield fd
    finally:
        os.close(fd)


class Shop:
    """A store in which one user's jobs publish; an entry's content is its text."""

    def __init__(self, store: Path) -> None:
        self.store = store
        self.where = namespace(store, OWN)

    def publish(self, content: str, *, began_for: str = "", scope: str = OWN, **more: str) -> bundles.Published:
        """Publish a job's entries."""
        made = self.made({KEY: content, **more}, began_for)
        with some_bytes() as fd:
            return bundles.publish_bundle(namespace(self.store, scope), fd, made, OWNER)

    def publish_parts(self, *entries: dict[str, str], began_for: str) -> bundles.Published:
        """Publish what nodes of a job have handed in, each its own."""
        run = parts.RunParts(str(self.store), parts.name_of(1000, "c", 7, 0))
        union = repack_parts._Union(repack_parts.MergeLimits(1 << 30, 1000))
        for number, made in enumerate(entries):
            with some_bytes() as fd:
                part = parts.hand_in(run, self.where, fd, self.made(made, began_for), "n[1-2]", OWNER)
            union.add(self.where, parts.read(run, part), is_head=number == 0)
        with some_bytes() as fd:
            return bundles.publish_bundle(self.where, fd, union.draft(), OWNER)

    @staticmethod
    def made(contents: dict[str, str], began_for: str) -> Draft:
        """Return the draft of a job that has built this."""
        entries = {
            entry: {f"{entry}.nbi": File(len(text), text.encode().hex().ljust(64, "0"), 0)}
            for entry, text in contents.items()
        }
        return draft()._replace(entries=entries, fresh=bool(began_for), suspicion=began_for)

    def seen(self, *scopes: str) -> tuple[set[str], str]:
        """Return the bundles from which a job is offered the entry, and the suspicion that is open."""
        found = bundles.offers(str(self.store), list(scopes or (OWN,)), "numba", "ns", OWNER)
        there = {offer.bundle for offer in found.offers if KEY in offer.entries}
        return there, found.suspicion.id if found.suspicion else ""

    def suspect(self, name: str) -> bool:
        """Open a suspicion now."""
        now = time.time()
        return evidence.suspect(self.where, OWNER, Suspicion(name, 1, 20.0, now, now, "v", WEEK))


def test_the_turns_of_two_configurations_in_a_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The survivor's version is offered, then none, and nothing comes back, whatever maintenance does."""
    shop = Shop(tmp_path)
    first = shop.publish("a")
    assert shop.suspect("1.aa")
    assert not shop.suspect("2.bb")
    assert shop.seen() == ({first.bundle}, "1.aa")
    second = shop.publish("b", began_for="1.aa", other="x")
    assert (second.settled, sorted(second.superseding)) == (REPLACED, [KEY, "other"])
    assert shop.seen() == ({second.bundle}, "")
    assert shop.publish("c", began_for="1.aa").bundle is None  # too late: it is settled
    assert shop.suspect("3.cc")
    third = shop.publish("a", began_for="3.cc", third="y")
    assert (third.bundle, third.settled, third.superseding) == (None, SET_ASIDE, [KEY])
    assert shop.seen() == (set(), "")
    assert KEY in bundles.known_entries(shop.where, OWNER, "a", 1, fresh=True)
    assert shop.publish("a").bundle is None
    ahead = time.time() + DAY
    maintenance.remove(shop.where, OWNER, maintenance.superseded(shop.where, OWNER, ahead))
    assert shop.seen() == (set(), "")
    assert shop.publish("a").bundle is None
    monkeypatch.setattr(time, "time", lambda: ahead + WEEK)
    assert shop.publish("a").bundle
    assert KEY not in bundles.known_entries(shop.where, OWNER, "a", 1, fresh=True)


def test_what_a_survivors_nodes_hand_in_settles_it(tmp_path: Path) -> None:
    """Their parts are merged to one bundle, which takes the place as that of one node does."""
    shop = Shop(tmp_path)
    shop.publish("a")
    assert shop.suspect("1.aa")
    merged = shop.publish_parts({KEY: "b"}, {"other": "x"}, began_for="1.aa")
    assert (merged.settled, sorted(merged.superseding)) == (REPLACED, [KEY, "other"])
    assert shop.seen() == ({merged.bundle}, "")


def test_a_wider_scopes_entries_are_hidden_for_that_user(tmp_path: Path) -> None:
    """The user never published there: the suspicion makes the namespace. Others see no difference."""
    shop = Shop(tmp_path)
    shared = shop.publish("a", scope=SITE)
    assert shop.suspect("1.aa")
    assert shop.seen(SITE, OWN) == ({shared.bundle}, "1.aa")
    own = shop.publish("b", began_for="1.aa")
    assert shop.seen(SITE, OWN) == ({own.bundle}, "")
    assert shop.seen(SITE) == ({shared.bundle}, "")


def test_a_rebuilt_index_has_forgotten_it_and_an_acquittal_is_kept(tmp_path: Path) -> None:
    """What else is published, or how often the index is written, changes nothing."""
    shop = Shop(tmp_path)
    shop.publish("a")
    assert shop.suspect("1.aa")
    assert evidence.outlive(shop.where, OWNER, "1.aa")
    assert not evidence.acquit(shop.where, OWNER, "1.aa")
    bundles.reindex(shop.where, OWNER)
    assert shop.seen()[1] == ""
    assert shop.suspect("2.bb")
    assert evidence.acquit(shop.where, OWNER, "2.bb")
    shop.publish("a", other="x")
    assert not shop.suspect("3.cc")


def test_an_index_of_before_says_nothing(tmp_path: Path) -> None:
    """One without the field is whole."""
    shop = Shop(tmp_path)
    shop.publish("a")
    assert index.read(shop.where.path, OWNER).evidence is None
    assert shop.seen()[1] == ""
