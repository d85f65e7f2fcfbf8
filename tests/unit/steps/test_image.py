"""The images of a job: each obtained in its order, told to the audit, and what the job will see of them."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from itertools import repeat
from pathlib import Path

import pytest

from tests.lib.image_site import RULES
from tests.lib.runs import changed, events, ran, result
from warmstart.errors import ResourceError, WarmstartError
from warmstart.host.deadline import Deadline, after
from warmstart.images import agreed, private, single_flight
from warmstart.images.agreed import HeadHasNone, HeadImage, Heads
from warmstart.images.importers.base import ImageForbidden, ImageNotFound, RegistryUnreachable
from warmstart.images.imports.job_end import JobOver
from warmstart.images.private import JobOwner
from warmstart.images.query import Missing, Obtained, Requester, Site
from warmstart.images.reference import PyxisImage, Reference, parse
from warmstart.images.store.layout import NOBODY, Charged
from warmstart.policy.keys import Credentials
from warmstart.steps import image
from warmstart.steps.contract import Context, Outcome
from warmstart.steps.image import Options
from warmstart.store.barrier import Barrier, HeadSilent
from warmstart.store.layout import StoreFailed

FIRST, SECOND = parse("reg.example.com/a:1"), parse("reg.example.com/b:2")
DIGEST, MOVED = f"sha256:{'ab' * 32}", f"sha256:{'cd' * 32}"


class Flights:
    """Stands in for the single flight: finds what a test says, and remembers who asked for what."""

    def __init__(self) -> None:
        self.how, self.missing = "reused", Missing()
        self.meanings: Iterator[str] = repeat(DIGEST)  # of tags, one after the other
        self.failing: dict[Reference, WarmstartError] = {}
        self.asked: list[tuple[str, Site, Deadline]] = []

    def obtain(self, reference: Reference, site: Site, deadline: Deadline) -> Obtained:
        self.asked.append((reference.canonical(), site, deadline))
        if error := self.failing.get(reference):
            raise error
        digest, name = reference.digest or next(self.meanings), f"{len(self.asked)}"
        reason = "no answer" if self.how == "stale" else ""
        return Obtained(name, f"/store/{name}.sqsh", digest, 4096, self.how, 0.25, self.missing, reason=reason)

    def names(self) -> list[str]:
        return [name for name, _, _ in self.asked]


@pytest.fixture
def flights(monkeypatch: pytest.MonkeyPatch) -> Flights:
    """Return the stand-in, in place."""
    made = Flights()
    monkeypatch.setattr(single_flight, "obtain", made.obtain)
    return made


NOT_FOUND = ImageNotFound(image=FIRST.canonical())


def test_the_first_image_is_the_jobs(context: Context, flights: Flights) -> None:
    assert image.run(context, Options((FIRST, SECOND))) == Outcome(
        run=changed(
            context.run, image=DIGEST, images={FIRST.canonical(): "/store/1.sqsh", SECOND.canonical(): "/store/2.sqsh"}
        ),
        environment={"WARMSTART_IMAGE": "/store/1.sqsh", "WARMSTART_IMAGES": "/store/1.sqsh:/store/2.sqsh"},
    )
    assert flights.names() == [FIRST.canonical(), SECOND.canonical()]
    assert all(deadline.left() <= context.policy.images.wait for _, _, deadline in flights.asked)
    (first, second) = result(context)["images"]
    assert (first["image"], first["path"], first["bytes"], first["waited_ms"]) == (
        FIRST.canonical(),
        "/store/1.sqsh",
        4096,
        250,
    )
    assert second["image"] == SECOND.canonical()


def test_who_pays_for_an_image(context: Context, flights: Flights) -> None:
    """The job's user and account, but nobody for what the policy names."""
    run = context.run._replace(account="physics")
    image.run(context._replace(run=run), Options((FIRST, SECOND), by_policy=frozenset({SECOND})))
    assert [site.charged for _, site, _ in flights.asked] == [Charged("ws-alice", run.uid), NOBODY]
    assert {site.requester for _, site, _ in flights.asked} == {Requester("n1", "0a1b2c3d", 7, "test")}


def test_an_image_leaves_time_to_later_steps(context: Context, flights: Flights) -> None:
    image.run(context._replace(deadline=after(20)), Options((FIRST,), later=12.0))
    (deadline,) = (deadline for _, _, deadline in flights.asked)
    assert 7 < deadline.left() <= 8


def test_what_happened_on_the_way_is_told(context: Context, flights: Flights) -> None:
    flights.missing = Missing("damaged", "no locks", ("old1", "old2"))
    image.run(context, Options((FIRST,)))
    assert [event["reason"] for event in events(context, "image.damaged")] == ["damaged"]
    assert [remark["text"] for remark in result(context)["remarks"]] == ["was imported without a lock: no locks"]
    assert [event["name"] for event in events(context, "image.evicted")] == ["old1", "old2"]
    flights.missing = Missing()
    image.run(context, Options((FIRST,)))
    assert len(events(context, "image.damaged")) == 1


PYXIS = PyxisImage(FIRST, has_login=False, user_scope="user-1-a")


@pytest.mark.parametrize("error", [ImageForbidden(image="a", problem="401"), ImageNotFound(image="a")])
def test_pyxis_imports_what_the_registry_does_not_show_to_the_site(
    context: Context, flights: Flights, error: WarmstartError
) -> None:

    flights.failing[FIRST] = error
    outcome = image.run(context, Options((FIRST, SECOND), pyxis=PYXIS))
    assert outcome.run == changed(
        context.run,
        image="claimed:reg.example.com/a:1",
        images={SECOND.canonical(): "/store/2.sqsh"},
        read_scopes=["user-1-a"],
        publish_scope="user-1-a",
    )
    assert outcome.environment["WARMSTART_IMAGE"] == "/store/2.sqsh"
    (notice,) = outcome.notices
    assert str(error) in notice
    with pytest.raises(type(error)):  # an image of the comment, which nobody imports as the user
        image.run(context, Options((FIRST, SECOND), pyxis=PYXIS._replace(reference=SECOND)))


def test_an_image_with_own_credentials_is_not_asked_for(context: Context, flights: Flights) -> None:
    outcome = image.run(context, Options((FIRST,), pyxis=PYXIS._replace(has_login=True)))
    assert flights.asked == []
    assert (ran(outcome).own.image, outcome.environment) == ("claimed:reg.example.com/a:1", {})


@pytest.mark.parametrize(("refresh", "tag_ttl", "taken"), [(True, 3600, 300), (True, 60, 60), (False, 3600, 3600)])
def test_a_job_that_asks_again_takes_young_answers_only(
    context: Context, flights: Flights, refresh: bool, tag_ttl: int, taken: int
) -> None:
    """But none that is younger than the policy wants is asked for again: users cannot flood a registry."""
    rules = context.policy.images._replace(tag_ttl=tag_ttl)
    image.run(context._replace(policy=context.policy._replace(images=rules)), Options((FIRST,), refresh=refresh))
    assert flights.asked[0][1].rules.tag_ttl == taken


def test_a_registry_that_is_down_is_no_reason_to_import_as_the_user(context: Context, flights: Flights) -> None:
    flights.failing[FIRST] = RegistryUnreachable(image="a", problem="503")
    with pytest.raises(RegistryUnreachable):
        image.run(context, Options((FIRST,), pyxis=PYXIS))


def test_a_private_image_is_copied_for_the_job(
    context: Context, flights: Flights, monkeypatch: pytest.MonkeyPatch
) -> None:
    rules = RULES._replace(credentials=Credentials("/nowhere/credentials", ()))
    context = context._replace(policy=context.policy._replace(images=rules))
    apart = []

    def site_of(site: Site, name: str, _deadline: Deadline) -> Site:
        apart.append(name)
        return site._replace(recipe="apart")

    def hand_over(found: Obtained, reference: Reference, owner: JobOwner, site: Site, _deadline: Deadline) -> str:
        assert (found.path, reference, site.recipe != "apart") == ("/store/1.sqsh", FIRST, True)
        assert owner == (context.run.directory, context.run.uid, context.run.gid)
        return "/run/copy.sqsh"

    monkeypatch.setattr(private, "site_of", site_of)
    monkeypatch.setattr(private, "hand_over", hand_over)
    outcome = image.run(context, Options((FIRST, SECOND), private=((FIRST, "team"),)))
    assert apart == ["team"]
    assert outcome.environment["WARMSTART_IMAGES"] == "/run/copy.sqsh:/store/2.sqsh"
    assert [site.recipe == "apart" for _, site, _ in flights.asked] == [True, False]


@pytest.fixture
def agreeing(context: Context) -> Options:
    """Return what the head node and another one of a job on two nodes are told."""
    Path(context.policy.paths.store).mkdir()
    return Options((FIRST,), barrier=Barrier("test.7.0", "images", "n[1-2]"), agreed=frozenset({FIRST}))


def another(context: Context) -> Context:
    """Return the context of a node that is not the head."""
    return context._replace(run=context.run._replace(node="n2", nodelist="n[1-2]"))


@pytest.mark.parametrize("how", ["reused", "waited", "stale"])
def test_all_nodes_have_the_head_nodes_image(context: Context, agreeing: Options, flights: Flights, how: str) -> None:
    """The others ask for its digest, and are told as it is; its epilog removes what they agreed on."""
    flights.how = how
    head = image.run(context, agreeing)
    assert (ran(head).own.image, head.topics) == (DIGEST, ("test.7.0/images",))
    flights.how = "reused"
    other = image.run(another(context), agreeing)
    assert other.run == changed(another(context).run, image=DIGEST, images={FIRST.canonical(): "/store/2.sqsh"})
    assert flights.names() == [FIRST.canonical(), FIRST.at(DIGEST)]
    assert [(got["image"], got["how"]) for got in result(context)["images"]] == [(FIRST.canonical(), how)] * 2


def test_a_steps_image_is_what_the_jobs_first_step_in_it_found(
    context: Context, agreeing: Options, flights: Flights
) -> None:
    options = agreeing._replace(of_step=True)
    flights.failing[FIRST] = NOT_FOUND
    with pytest.raises(ImageNotFound):
        image.run(context, options)
    flights.failing.clear()
    flights.meanings = iter([DIGEST, MOVED])
    nodes = [another(context), context, another(context)]
    assert [ran(image.run(node, options)).own.image for node in nodes] == [DIGEST] * 3
    assert flights.names() == [FIRST.canonical(), FIRST.canonical(), FIRST.at(DIGEST), FIRST.at(DIGEST)]


def test_steps_that_find_an_image_at_once_have_the_same(
    context: Context, agreeing: Options, flights: Flights, monkeypatch: pytest.MonkeyPatch
) -> None:
    options, flights.meanings = agreeing._replace(of_step=True), iter([DIGEST, MOVED])
    image.run(context, options)
    monkeypatch.setattr(Heads, "heard", lambda *_: {})
    assert ran(image.run(another(context), options)).own.image == DIGEST


def test_what_this_node_knows_needs_no_barrier(context: Context, agreeing: Options, flights: Flights) -> None:
    os.rmdir(context.policy.paths.store)
    options = agreeing._replace(of_step=True)
    known = options._replace(said={FIRST.canonical(): HeadImage(DIGEST)})
    assert [ran(image.run(context, one)).own.image for one in (known, options)] == [DIGEST] * 2
    assert flights.names() == [FIRST.at(DIGEST), FIRST.canonical()]


def test_a_prolog_that_runs_again_keeps_to_its_word(context: Context, agreeing: Options, flights: Flights) -> None:
    image.run(context, agreeing)
    flights.failing[FIRST] = NOT_FOUND
    assert ran(image.run(context, agreeing)).own.image == DIGEST


def test_no_node_has_an_image_that_the_head_node_has_not(context: Context, agreeing: Options, flights: Flights) -> None:
    """All fail alike, whatever the others would find. The word stays: this job may end before they read it."""
    flights.failing[FIRST] = NOT_FOUND
    with pytest.raises(ImageNotFound):
        image.run(context, agreeing)
    flights.failing.clear()
    with pytest.raises(ImageNotFound, match=r"reg\.example\.com/a:1"):
        image.run(another(context), agreeing)


def test_what_the_head_node_leaves_to_pyxis_all_do(context: Context, agreeing: Options, flights: Flights) -> None:
    flights.failing[FIRST] = ImageForbidden(image=FIRST.canonical(), problem="401")
    options = agreeing._replace(pyxis=PYXIS)
    head = image.run(context, options)
    flights.failing.clear()
    other = image.run(another(context), options)
    assert ran(head).own.image == ran(other).own.image == "claimed:reg.example.com/a:1"
    assert head.notices == other.notices


def test_a_head_node_that_cannot_say_what_it_has_does_without(
    context: Context, agreeing: Options, flights: Flights
) -> None:
    Path(context.policy.paths.store).rmdir()
    with pytest.raises(StoreFailed):
        image.run(context, agreeing)
    flights.failing[FIRST] = NOT_FOUND
    with pytest.raises(ImageNotFound):
        image.run(context, agreeing)


def test_without_the_store_pyxis_imports_its_image(context: Context, agreeing: Options, flights: Flights) -> None:
    failure = StoreFailed(what="find it", problem="Transport endpoint is not connected")
    flights.failing = {FIRST: failure, SECOND: failure}
    alone = image.run(context, Options((FIRST,), pyxis=PYXIS))
    assert ran(alone).own.image == "claimed:reg.example.com/a:1"
    assert "Transport endpoint is not connected" in alone.notices[0]
    with pytest.raises(StoreFailed):
        image.run(context, Options((SECOND,), pyxis=PYXIS))
    Path(context.policy.paths.store).rmdir()
    for one in (context, another(context)):
        assert ran(image.run(one, agreeing._replace(pyxis=PYXIS))).own.image == "claimed:reg.example.com/a:1"


def test_where_the_head_node_is_silent_pyxis_imports_its_image(context: Context, agreeing: Options) -> None:
    """As where warmstart is off there: without it the step would run. Another image is still missing."""
    waits = context.policy.images._replace(wait=0)
    node = another(context._replace(policy=context.policy._replace(images=waits)))
    told = image.run(node, agreeing._replace(pyxis=PYXIS))
    assert ran(told).own.image == "claimed:reg.example.com/a:1"
    assert "the head node n1 has named no image" in told.notices[0]
    with pytest.raises(HeadSilent):
        image.run(node, agreeing)


class Full(ResourceError):
    """Of the head node alone."""

    code = "full-for-a-test"
    template = "no room on {disk}"


@pytest.mark.usefixtures("flights")
@pytest.mark.parametrize(
    ("said", "problem"),
    [
        (agreed.failed(Full(disk="/var")), "no room on /var"),
        (HeadImage(code="of-a-later-release", text="who knows"), "who knows"),
        (HeadImage(digest="../../etc/passwd"), "it named none"),
        (None, "it did not look for it"),
    ],
)
def test_a_failure_of_the_head_alone_leaves_the_others_without_the_image(
    context: Context, agreeing: Options, monkeypatch: pytest.MonkeyPatch, said: HeadImage | None, problem: str
) -> None:
    """Nobody chooses an image of its own."""
    monkeypatch.setattr(Heads, "word", lambda *_: {FIRST.canonical(): said} if said else {})
    with pytest.raises(HeadHasNone, match=f"{problem}$"):
        image.run(another(context), agreeing)


def test_who_waits_for_the_head_hears_that_the_job_is_over(
    context: Context, agreeing: Options, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The head node may be gone with it, and its word removed. The watch begins once."""
    monkeypatch.setattr(agreed, "ALONE_S", 0.0)
    begun, answers = [], iter([False, False, True])

    def job_end() -> Callable[[Deadline], bool]:
        begun.append(0)
        return lambda _: next(answers)

    assert agreeing.barrier
    heads = Heads(context.store, agreeing.barrier)
    with pytest.raises(JobOver, match=r"while it waited for image reg\.example\.com/a:1"):
        heads.word(FIRST.canonical(), job_end, after(30))
    assert begun == [0]


def test_the_head_gives_up_before_the_others_so_that_they_learn_why() -> None:
    assert 214 < agreed.earlier(after(220)).left() <= 215
    assert 0.8 < agreed.earlier(after(1)).left() <= 0.9
