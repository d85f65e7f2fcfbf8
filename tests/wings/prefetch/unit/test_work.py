"""Which images a prefetch asks for, for whom, and how few of them, whatever pending jobs' owners wrote."""

from __future__ import annotations

import json
import os
import pwd
import random
import time
from collections.abc import Mapping
from typing import Any

import pytest

from tests.support.entry_site import EntrySite
from tests.support.superblocks import image
from warmstart.errand import Errands
from warmstart.host import detached
from warmstart.host.deadline import after
from warmstart.images import choice
from warmstart.images.importers.base import ImageNotFound
from warmstart.images.imports import requests
from warmstart.images.imports.requests import IMPORTS, ImportRequest
from warmstart.images.query import Requester, Site
from warmstart.images.reference import parse
from warmstart.images.store import layout, published
from warmstart.images.store.client import ImageStoreClient
from warmstart.images.store.layout import NOBODY, Charged, ImageQuery
from warmstart.images.store.published import RememberedFailure
from warmstart.job import Job, from_environment
from warmstart.policy.compiled import Condition, Credentials, Policy, PrivateRepository, Rule
from warmstart.policy.trust import UNPROVEN
from warmstart.slurm.pending import PendingJob
from warmstart.slurm.slurmctld import LookUpFailed, Slurmctld
from warmstart.wings.prefetch import work
from warmstart.wings.prefetch.work import (
    FAILED,
    MOST_IMAGES,
    MOST_JOBS,
    NO_SLOT,
    PRESENT,
    REQUESTED,
    UNDER_WAY,
    Wanted,
    wanted_by_jobs,
)

HEX = "ab" * 32
DIGEST = f"sha256:{HEX}"
ALICE, BOB = 2001, 2002
JOB = PendingJob(7, ALICE, 2001, "c1", "main", "team", "", "", "train", 0, "")
RULE = Rule("everyone", "policy.yaml:1", (), (), (), "", (), {}, ())


def keeping(policy: Policy, *images: str) -> Policy:
    """Return the policy with these images to be kept in the store."""
    return policy._replace(own={work.KEY: [*images]})


@pytest.fixture(autouse=True)
def names(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let this host know the users."""

    def find(uid: int) -> pwd.struct_passwd:
        name = {ALICE: "alice", BOB: "bob"}.get(uid, f"user{uid}" if uid >= 3000 else "")
        if not name:
            raise KeyError(uid)
        return pwd.struct_passwd((name, "x", uid, uid, "", "/", "/bin/sh"))

    monkeypatch.setattr(pwd, "getpwuid", find)
    monkeypatch.setattr(os, "getgrouplist", lambda *_: [])


@pytest.fixture
def site(entry_site: EntrySite, monkeypatch: pytest.MonkeyPatch) -> EntrySite:
    """Give a site that starts no imports."""
    monkeypatch.setattr(detached, "start", lambda *_, **__: None)
    entry_site.write(entry_site.policy._replace(rules=(RULE,)))
    return entry_site


def asking(text: str, uid: int = ALICE, number: int = 7, **changes: Any) -> PendingJob:  # noqa: ANN401 - fields
    """Return a job that asks for an image."""
    return JOB._replace(uid=uid, job_id=number, comment=f"warmstart: image={text}", **changes)


def run(site: EntrySite, *images: Wanted) -> list[str]:
    """Run a prefetch of the shared store; return the results."""
    with ImageStoreClient.of(site.policy.store_user, site.policy.paths.store) as store:
        shared = Site.of(site.policy, site.paths, store, Requester("n1", "cli1", 0))
        return [row.result for row in work.run(shared, site.installation, images)]


def written(site: EntrySite) -> list[ImportRequest]:
    """Return the requests that there are."""
    return sorted((request for _, request in requests.waiting(site.paths)), key=lambda request: request.reference)


def of_job(name: str, number: int = 7, uid: int = ALICE) -> Wanted:
    """Return an image that a job wants."""
    return Wanted(parse(f"reg.example.com/{name}"), "", Charged("alice", uid, ""), number, "c1")


def publish(site: EntrySite, reference: str, age_s: float = 0) -> None:
    """Put an image into the store whose tag was resolved so long ago."""
    kind = f"{os.uname().machine}.{choice.recipe(site.policy.images.importer)}"
    query = ImageQuery(parse(reference), kind, layout.key_of(parse(reference).canonical()), "", 0.0)
    (site.store / "images").mkdir(exist_ok=True)
    (site.store / "images" / f"{layout.image_name(DIGEST, kind)}.sqsh").write_bytes(image())
    with ImageStoreClient.of(site.policy.store_user, site.policy.paths.store) as store:
        store.run(after(60), published.point, query.key, DIGEST, time.time() - age_s, "test")


def test_what_jobs_ask_for_is_what_their_prologs_would_obtain(site: EntrySite) -> None:
    """By comment and by submit line. Nobody is charged for the policy's images, and no account that is not proven."""
    rule = RULE._replace(images=("docker://reg.example.com/base:1",))
    policy = site.policy._replace(rules=(rule,))
    job = asking("reg.example.com/a:1", pyxis_image="reg.example.com#b:1", warm_image="reg.example.com/c:1")
    found, refused = wanted_by_jobs(policy, [job])
    assert [wanted.reference.canonical() for wanted in found] == [
        f"reg.example.com/{x}:1" for x in ("b", "c", "a", "base")
    ]
    assert [wanted.charged for wanted in found] == [*[Charged("alice", ALICE, "team")] * 3, NOBODY]
    assert {(wanted.job_id, wanted.cluster) for wanted in found} == {(7, "c1")}
    assert refused == 0
    unproven = policy._replace(trust=policy.trust._replace(account=UNPROVEN))
    assert wanted_by_jobs(unproven, [job])[0][0].charged == Charged("alice", ALICE, "")


@pytest.mark.threat(40)
@pytest.mark.parametrize(
    ("change", "refused"),
    [
        ({"comment": "warmstart: image=docker.io/evil:1"}, 1),
        ({"comment": "warmstart: image=$(reboot)"}, 1),
        ({"comment": "warmstart: image=a://b"}, 1),
        ({"comment": "warmstart: " + "image=reg.example.com/a:1 " * 30 + "bad"}, 1),
        ({"pyxis_image": "docker://alice@reg.example.com#a:1"}, 0),
        ({"pyxis_image": "/home/alice/own.sqsh"}, 0),
        ({"pyxis_image": "../own.sqsh"}, 0),
        ({"comment": "warmstart: image=reg.example.com/a:1", "no_warm": True}, 0),
        ({"comment": "warmstart: image=reg.example.com/a:1", "uid": 1500}, 1),
        ({"comment": "warmstart: image=reg.example.com/a:1", "job_id": 0}, 1),
    ],
)
def test_what_a_prolog_would_not_import_is_left_out(
    site: EntrySite, monkeypatch: pytest.MonkeyPatch, change: dict[str, Any], refused: int
) -> None:
    """Registries, the form of a request, the user's own credentials, --no-warm, users that this host does not know."""
    monkeypatch.undo()
    monkeypatch.setattr(
        pwd, "getpwuid", lambda uid: {ALICE: pwd.struct_passwd(("alice", "", uid, uid, "", "", ""))}[uid]
    )
    assert wanted_by_jobs(site.policy, [JOB._replace(**change)]) == ([], refused)


def test_rules_decide_by_what_is_known_of_a_pending_job(site: EntrySite) -> None:
    """Each of its partitions; not the node. A job that is observed, or that no rule matches, is left alone."""

    def rules(**given: str) -> list[str]:
        match = tuple(Condition(name, (text,)) for name, text in given.items() if name != "mode")
        policy = site.policy._replace(rules=(RULE._replace(match=match, mode=given.get("mode", "")),))
        found, _ = wanted_by_jobs(policy, [asking("reg.example.com/a:1", partition="main,gpu", array=5)])
        return [wanted.reference.repository for wanted in found]

    assert rules() == rules(partition="gpu") == rules(user="alice") == rules(job_name="train") == ["a"]
    assert rules(partition="cpu") == rules(node="n1") == rules(mode="observe") == []


def test_users_with_too_low_a_uid_get_nothing(monkeypatch: pytest.MonkeyPatch, site: EntrySite) -> None:
    """As in a prolog: root's jobs, and those of system accounts."""
    monkeypatch.undo()
    policy = site.policy._replace(limits=site.policy.limits._replace(min_uid=1000))
    assert wanted_by_jobs(policy, [asking("reg.example.com/a:1", uid=0)]) == ([], 0)


def test_private_images_come_from_their_own_store(site: EntrySite) -> None:
    """For whom the policy says; in prefetch.images by their repository alone."""
    by_user = (Condition("user", ("alice",)),)
    private = PrivateRepository("team", "reg.example.com/team/app", by_user)
    images = site.policy.images._replace(credentials=Credentials("/etc/auth.json", (private,)))
    policy = keeping(site.policy._replace(images=images), "docker://reg.example.com/team/app:1")
    jobs = [asking("reg.example.com/team/app:1", uid) for uid in (ALICE, BOB)]
    found, _ = wanted_by_jobs(policy, jobs)
    assert sorted((wanted.charged.user, wanted.private) for wanted in found) == [("alice", "team"), ("bob", "")]
    assert work.wanted_by_policy(policy) == [Wanted(parse("reg.example.com/team/app:1"), "team")]


@pytest.mark.threat(40)
def test_a_thousand_hostile_comments_cost_little(site: EntrySite, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of one user a hundred jobs are read and sixteen images looked up; the other user's image has its turn."""
    read: list[str] = []

    def note(environ: Mapping[str, str]) -> Job:
        read.append(environ["SLURM_JOB_ID"])
        return from_environment(environ)

    monkeypatch.setattr(work, "from_environment", note)
    hostile = [asking(f"reg.example.com/x{number}:1", ALICE, number) for number in range(1, 1001)]
    same = [asking("reg.example.com/same:1", BOB, number) for number in range(2000, 3000)]
    found, refused = wanted_by_jobs(site.policy, [*hostile, *same])
    assert (len(read), len(found), refused) == (MOST_JOBS + 1, MOST_IMAGES + 1, 0)
    assert "same" in [wanted.reference.repository for wanted in found[:2]]
    results = run(site, *found)
    slots = site.policy.images.parallel
    assert (results.count(REQUESTED), results.count(NO_SLOT)) == (slots, len(found) - slots)
    assert len(written(site)) == slots
    assert run(site, *found).count(REQUESTED) == 0  # as long as those are at work


@pytest.mark.threat(40)
def test_no_user_keeps_the_others_requests_out(site: EntrySite) -> None:
    """Whoever has none there may have one, whatever the others have; further ones need a place."""
    slots = site.policy.images.parallel
    assert run(site, *(of_job(f"slow{number}:1") for number in range(slots))) == [REQUESTED] * slots
    bobs = [of_job(f"b{number}:1", 8, BOB) for number in range(2)]
    assert run(site, of_job("slow:1"), *bobs) == [NO_SLOT, REQUESTED, NO_SLOT]
    assert run(site, *bobs) == [UNDER_WAY, NO_SLOT]


def test_an_image_is_asked_for_by_each_of_its_users(site: EntrySite) -> None:
    """So that it comes by the turn that is first; by nobody's, too, for whom the policy asks."""
    policys = of_job("a:1")._replace(job_id=0, charged=NOBODY)
    assert run(site, of_job("a:1"), of_job("a:1", 8, BOB), policys) == [REQUESTED, UNDER_WAY, UNDER_WAY]
    assert {request.uid for request in written(site)} == {ALICE, BOB, -1}


def test_who_comes_first_is_chance(site: EntrySite, monkeypatch: pytest.MonkeyPatch) -> None:
    """So nobody can be first in every run."""
    jobs = [asking(f"reg.example.com/u{uid}:1", uid, uid) for uid in range(3000, 3010)]
    orders = set()
    for seed in range(5):
        monkeypatch.setattr(random, "shuffle", random.Random(seed).shuffle)
        orders.add(tuple(wanted.job_id for wanted in wanted_by_jobs(site.policy, jobs)[0]))
    assert len(orders) == 5


@pytest.mark.threat(40)
def test_an_image_of_two_users_has_both_their_turns(site: EntrySite) -> None:
    """Of one user it is wanted once. It comes although one of the two has no place left."""
    found, _ = wanted_by_jobs(site.policy, [asking("reg.example.com/a:1", uid) for uid in (ALICE, BOB, BOB)])
    assert sorted(wanted.charged.uid for wanted in found) == [ALICE, BOB]
    slots = site.policy.images.parallel
    run(site, *(of_job(f"slow{number}:1") for number in range(slots)))
    assert run(site, of_job("a:1"), of_job("a:1", 8, BOB)) == [NO_SLOT, REQUESTED]


def test_a_request_is_as_a_prolog_writes_it(site: EntrySite) -> None:
    """It names the job, its user and its cluster; a second run leaves it alone."""
    assert run(site, of_job("a:1")) == [REQUESTED]
    (request,) = written(site)
    assert (request.reference, request.user, request.uid) == ("reg.example.com/a:1", "alice", ALICE)
    assert (request.job_id, request.cluster) == (7, "c1")
    assert request.fresh_after == pytest.approx(time.time() - site.policy.images.tag_ttl, abs=60)
    assert run(site, of_job("a:1", 8)) == [UNDER_WAY]
    assert site.installation.nodes() == ["n1"]  # maintenance takes care of its requests


def test_what_is_there_is_left_alone(site: EntrySite) -> None:
    """A tag that a job asks for is there as long as its prolog would take it."""
    publish(site, "reg.example.com/a:1", site.policy.images.tag_ttl * 0.7)
    assert run(site, of_job("a:1")) == [PRESENT]
    assert written(site) == []
    assert list(site.store.glob("images/used/*/*")) == []


@pytest.mark.parametrize(("age", "result"), [(0.4, PRESENT), (0.6, REQUESTED), (1.1, REQUESTED)])
def test_the_policys_images_are_kept_fresh_and_in_use(site: EntrySite, age: float, result: str) -> None:
    """The registry is asked again in the second half of a tag's life; what is there is marked once a day."""
    publish(site, "reg.example.com/a:1", site.policy.images.tag_ttl * age)
    images = work.wanted_by_policy(keeping(site.policy, "docker://reg.example.com/a:1"))
    assert run(site, *images) == [result]
    assert len(list(site.store.glob("images/used/*/n1"))) == (result == PRESENT)
    asked = [time.time() - request.fresh_after for request in written(site)]
    assert asked == pytest.approx([site.policy.images.tag_ttl / 2] * (result == REQUESTED), abs=60)


def test_the_policys_images_need_no_slot(site: EntrySite) -> None:
    """The queue gives them one."""
    images = [Wanted(parse(f"reg.example.com/{number}:1")) for number in range(5)]
    assert run(site, *images) == [REQUESTED] * 5
    assert run(site, of_job("a:1")) == [REQUESTED]


@pytest.mark.parametrize(("age", "uid", "result"), [(60, -1, FAILED), (60, BOB, REQUESTED), (3700, -1, REQUESTED)])
def test_what_has_failed_waits_an_hour(site: EntrySite, age: float, uid: int, result: str) -> None:
    """So that it takes no slot each time; another user's own failure does not count."""
    assert run(site, of_job("a:1")) == [REQUESTED]
    (request,) = written(site)
    Errands(site.paths, IMPORTS).drop(request.key)
    failure = RememberedFailure.of(ImageNotFound(image="reg.example.com/a:1"))._replace(uid=uid)
    requests.remember_failure(site.paths, request.image, failure)
    note = os.path.join(site.paths.imports, f"{request.image}.failed")
    with open(note, encoding="ascii") as file:
        content = json.load(file)
    with open(note, "w", encoding="ascii") as file:
        json.dump(content | {"at": time.time() - age}, file)
    assert run(site, of_job("a:1")) == [result]


def test_the_command(site: EntrySite, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both kinds by default; one event says what was asked for, and how many jobs were refused."""
    site.write(keeping(site.policy, "docker://reg.example.com/base:1"))
    pending = [asking("reg.example.com/a:1", BOB), asking("reg.example.com/base:1"), asking("evil.example.com/a:1")]
    monkeypatch.setattr(Slurmctld, "pending", lambda *_: pending)

    def rows(*options: str) -> list[tuple[str, str]]:
        done = site.json("prefetch", *options)
        return sorted((row["reference"], row["result"]) for row in done["images"])

    base, own = ("reg.example.com/base:1", REQUESTED), ("reg.example.com/a:1", REQUESTED)
    assert rows("--policy") == [base]
    assert rows() == [own, (base[0], UNDER_WAY)]
    assert rows("--pending") == [(own[0], UNDER_WAY), (base[0], UNDER_WAY)]
    first, second, third = site.events("image.prefetched")
    assert (first["images"], first["refused"]) == (["reg.example.com/base:1"], 0)
    assert (second["images"], second["refused"], third["images"]) == (["reg.example.com/a:1"], 1, [])
    shown = site.command("prefetch")
    assert (shown.exit_code, "under way" in shown.stdout, "1 pending jobs" in shown.stderr) == (0, True, True)


def test_without_slurmctld_the_policys_images_come_all_the_same(
    site: EntrySite, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And the exit status says so."""
    site.write(keeping(site.policy, "docker://reg.example.com/base:1"))

    def fail(*_: object) -> list[PendingJob]:
        raise LookUpFailed(what="pending jobs", problem="it is away")

    monkeypatch.setattr(Slurmctld, "pending", fail)
    done = site.command("prefetch")
    assert (done.exit_code, "it is away" in done.stderr) == (1, True)
    assert len(list(site.root.glob("var/lib/warmstart/*/errands/imports/*"))) == 1


def test_it_does_nothing_while_warmstart_is_off(site: EntrySite, monkeypatch: pytest.MonkeyPatch) -> None:
    """As the import that it would start."""
    monkeypatch.setattr(Slurmctld, "pending", lambda *_: pytest.fail("slurmctld is asked"))
    with open(site.installation.off_switch, "w", encoding="ascii"):
        pass
    done = site.command("prefetch")
    assert (done.exit_code, "switched off by" in done.stderr) == (0, True)
