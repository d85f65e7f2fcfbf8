"""Which profiles a job has depends on where its node puts caches."""

import pwd
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.lib.policy_site import a_rule, defaults
from tests.lib.runs import a_context, a_job, a_policy, a_run, changed
from warmstart import plan, wing
from warmstart.cli.plan import preview
from warmstart.ending import harvesting
from warmstart.images.reference import ImageReferenceInvalid, ImageRefused
from warmstart.job import Job
from warmstart.policy.keys import Limits, Match, Policy, Wing
from warmstart.policy.match import Grant, matching, scope_key
from warmstart.profiles import registry
from warmstart.profiles.contract import Profile
from warmstart.request import Request, RequestInvalid
from warmstart.run.state import Caches, Seeded
from warmstart.runner import Prepared, Step
from warmstart.steps.contract import Outcome
from warmstart.steps.image import Options

GRANT = Grant(["docker://reg.example.com/a:1"], ["numba"], {}, ["user-1-a"], "user-1-a", "")


@pytest.mark.parametrize(
    ("relocation", "follows_links", "constant_path", "used"),
    [
        ("relocatable", False, "none", True),
        ("relocatable", False, "spank", True),
        ("constant-path", False, "none", False),
        ("constant-path", True, "spank", True),
        ("constant-path", True, "namespace", True),
        ("constant-path", True, "enroot", True),
        ("constant-path", False, "link", True),
        ("constant-path", True, "link", False),
    ],
)
def test_profiles_bound_to_one_path_need_it(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    *,
    relocation: str,
    follows_links: bool,
    constant_path: str,
    used: bool,
) -> None:
    profile = registry.get("numba")._replace(relocation=relocation, follows_links=follows_links)  # type: ignore[arg-type]
    monkeypatch.setattr(registry, "get", lambda name, _defined: {"numba": profile}[name])
    policy = a_policy(tmp_path, constant_path=constant_path)
    requested = plan.request_of(policy, a_job(comment="warmstart: profiles=numba"), GRANT)
    assert plan.profiles(policy, GRANT, requested) == (["numba"] if used else [])
    assert plan.left_out(policy, GRANT, requested) == ({} if used else {"numba": plan.NO_CONSTANT_PATH})


def test_files_are_declared_by_name(tmp_path: Path) -> None:
    files = Profile({"WARMSTART_FILES": "{dir}"}, {"**": []}, relocation="relocatable", name="files")
    policy = a_policy(tmp_path, profiles=(files,))

    def profiles(comment: str) -> list[str]:
        return plan.profiles(policy, GRANT, plan.request_of(policy, a_job(comment=comment), GRANT))

    assert profiles("warmstart: files=llama-70b") == ["numba", "files"]
    assert profiles("") == ["numba"]
    with pytest.raises(plan.NotOffered, match="the profile 'files'"):
        profiles("warmstart: profiles=files")


def test_only_pyxis_image_may_name_a_user(tmp_path: Path) -> None:
    policy = a_policy(tmp_path, rules=(a_rule(),))
    for text in ("al.ice@reg.example.com#a:1", "docker://$oauthtoken@reg.example.com#a:1"):
        job = a_job()._replace(pyxis_image=text)
        requested = plan.request_of(policy, job, GRANT)
        assert [image.canonical() for image in plan.images(policy, GRANT, requested)] == ["reg.example.com/a:1"]
        assert preview(policy, job)["images"][0]["allowed"]
        (step,) = (step for step in plan.prolog(policy, job, GRANT, requested) if step.name == "image")
        pyxis = step.run.keywords["options"].pyxis  # type: ignore[attr-defined]
        assert (pyxis.has_login, pyxis.user_scope) == (True, scope_key("user", job))
    other = a_job()._replace(pyxis_image="a@reg.else.com#a:1")
    with pytest.raises(ImageRefused):
        plan.images(policy, GRANT, plan.request_of(policy, other, GRANT))
    job = a_job(comment="warmstart: image=alice@reg.example.com#a:1")
    with pytest.raises(ImageReferenceInvalid):
        plan.images(policy, GRANT, plan.request_of(policy, job, GRANT))


def test_groups_of_a_user_whom_the_node_does_not_know() -> None:
    """A directory that is not up yet says "no such user": a rule for a group is unknown, and grants nothing."""
    stranger = a_job()._replace(user="nobody-knows", uid=60123, gid=0)
    assert plan.groups(stranger) == ["root", None]
    rule = a_rule(match=Match(group=("research",)))
    (found,) = matching(a_policy(Path("/x"))._replace(rules=(rule,)), stranger, lambda: plan.groups(stranger))
    assert (found.matched, found.unknown, found.reason) == (False, True, "group is not known on this node")
    assert plan.groups(a_job()._replace(user="root", gid=0)) == ["root"]


def test_a_job_that_gets_nothing_is_not_told_off_for_its_comment() -> None:
    job = a_job(comment="warmstart: nonsense")
    with pytest.raises(RequestInvalid):
        plan.request_of(defaults(), job, GRANT)
    assert plan.request_of(defaults(), job, GRANT._replace(reason="uid 7 is below")) == Request((), ())


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"comment": "x warmstart: image=evil.example.com/a nonsense"}, True),
        ({"warm_fresh": True}, True),
        ({"warm_image": "a"}, True),
        ({"pyxis_image": "docker://a"}, False),
        ({"comment": "a warm start"}, False),
        ({"warm_image": "a", "no_warm": True}, False),
    ],
)
def test_only_those_who_ask_are_told_that_no_rule_matches(
    tmp_path: Path, changes: dict[str, object], told: bool
) -> None:
    """Pyxis imports its own images; a job with --no-warm wants nothing."""
    job = a_job(**changes)
    policy = a_policy(tmp_path, limits=Limits(1))
    grant = plan.grant(policy, job)
    assert (plan.prolog(policy, job, grant, plan.request_of(policy, job, grant)), grant.publish_scope) == ([], "")
    assert ("no rule of this cluster matches this job on node n1" in plan.notice_of(job, grant)) is told
    assert plan.notice_of(job, GRANT) == ""


def test_the_preview_tells_of_each_profile_and_of_what_is_left_out(tmp_path: Path) -> None:
    own = Profile({"MYTOOL": "{dir}/v1"}, {"**": []}, relocation="relocatable", name="mytool")
    policy = a_policy(tmp_path, profiles=(own,), rules=(a_rule(),))
    shown = preview(policy, a_job(comment="warmstart: profiles=mytool,deepgemm,torch-extensions"))
    assert shown["profiles"][0] == {
        "name": "mytool",
        "from": "job",
        "variables": {"MYTOOL": "$WARMSTART_CACHE/mytool/v1"},
        "experimental": False,
    }
    assert [(row["name"], row["experimental"]) for row in shown["profiles"][1:]] == [("deepgemm", True)]
    assert shown["left_out"] == {"torch-extensions": plan.NO_CONSTANT_PATH}


def test_the_preview_of_a_wish_that_is_refused_has_no_steps(tmp_path: Path) -> None:
    policy = a_policy(tmp_path, rules=(a_rule(),))
    shown = preview(policy, a_job(comment="warmstart: image=reg.example.com/a:1 nonsense"))
    assert shown["verdict"]["code"] == "request-invalid"
    assert (shown["steps"], shown["images"]) == ({"prolog": [], "epilog": []}, [])
    assert preview(policy, a_job(comment="warmstart: profiles=nope"))["left_out"] == {}


def test_a_failed_job_gives_nothing_that_needs_success(tmp_path: Path) -> None:
    seeded = {name: Seeded("ns", []) for name in ("numba", "own", "gone")}
    record = a_run(publish_scope="user-1-a", path="/c", seeded=seeded)
    own = Profile({"X": "{dir}"}, {"**": []}, only_successful=True, name="own")
    options = harvesting.to_harvest(a_policy(tmp_path, profiles=(own,)), record)
    assert options
    assert options.after_success == frozenset({"own"})
    assert options.failure
    options = harvesting.to_harvest(a_policy(tmp_path), record)
    assert options
    assert options.failure is None


def test_every_node_harvests_but_for_what_one_node_has_to_say(tmp_path: Path) -> None:
    """Of a file that each rank makes as a whole, and of files that the job names, the head node's is kept."""
    seeded = {name: Seeded("n", []) for name in ("numba", "vllm", "trt-rtx", "files", "gone")}
    record = a_run(publish_scope="user-1-a", path="/x", seeded=seeded, nodelist="n[1-2]")
    policy = a_policy(tmp_path)

    def of_head(**changes: object) -> frozenset[str]:
        options = harvesting.to_harvest(policy, changed(record, **changes))
        assert options
        return options.of_head

    assert of_head() == frozenset()
    assert of_head(node="n2") == of_head(others=[Caches("c0ffee00")]) == {"trt-rtx", "files", "gone"}
    assert of_head(node="n2", seeded={"files": seeded["files"]}) == {"files"}  # it says that it has nothing


@pytest.mark.parametrize(
    ("home", "where"),
    [
        ("/home/alice", {"CUDA_CACHE_PATH": "/home/alice/.nv/ComputeCache"}),
        ("/home/a\nb", {}),
        ("/", {}),
        ("", {}),
        (None, {}),
    ],
)
def test_the_drivers_cache_stays_in_the_users_home(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, home: str | None, where: dict[str, str]
) -> None:
    """SGLang would take it along. Without a home that a variable can name, and without an account, it does."""

    def account(uid: int) -> SimpleNamespace:
        if home is None:
            raise KeyError(uid)
        return SimpleNamespace(pw_dir=home)

    monkeypatch.setattr(pwd, "getpwuid", account)
    context = a_context(tmp_path)
    policy = context.policy._replace(constant_path="spank", rules=(a_rule(profiles=("sglang",)),))
    prepared = Prepared(context._replace(run=changed(context.run, path="/c")), [])
    step = plan.environment(policy, a_job(), GRANT._replace(profiles=["sglang"]), Request((), ()), prepared)
    variables = step.run.keywords["options"].profiles  # type: ignore[attr-defined]
    assert {name: value for name, value in variables.items() if name == "CUDA_CACHE_PATH"} == where
    assert variables["SGLANG_CACHE_DIR"] == "/c/sglang"


def agreed(policy: Policy, job: Job, words: str = "image=reg.example.com/a:1") -> set[str] | None:
    """Return the images of which a job's head node says which they are; None if each node finds its own."""
    job = job._replace(comment=f"warmstart: {words}")
    granted = plan.grant(policy, job)
    steps = plan.prolog(policy, job, granted, plan.request_of(policy, job, granted))
    (step,) = (one for one in steps if one.name == "image")
    options: Options = step.run.keywords["options"]  # type: ignore[attr-defined]
    assert (options.barrier is None) == (not options.agreed)
    return {reference.canonical() for reference in options.agreed} if options.barrier else None


def test_the_nodes_of_a_job_agree_on_its_images(tmp_path: Path) -> None:
    policy, on_two = a_policy(tmp_path, rules=(a_rule(),)), a_job(node="n2", nodelist="n[1-2]")
    digest = f"image=reg.example.com/a@sha256:{'ab' * 32}"
    assert agreed(policy, on_two) == {"reg.example.com/a:1"}
    assert agreed(policy, on_two, f"image=reg.example.com/b:2 {digest} fresh") == {"reg.example.com/b:2"}
    assert agreed(policy, on_two, digest) is None
    assert agreed(policy, a_job()) is None


def test_nobody_waits_for_a_head_node_that_does_not_look(tmp_path: Path) -> None:
    """Rules may give a job something on some of its nodes only."""
    on_n2 = Match(node=("n2",))
    policy = a_policy(tmp_path, rules=(a_rule(match=on_n2, images=("reg.example.com/p:1",)),))
    job = a_job(node="n2", nodelist="n[1-2]")
    assert agreed(policy, job) is None
    policy = policy._replace(rules=(a_rule(), *policy.rules))
    assert agreed(policy, job) == {"reg.example.com/a:1"}


def test_a_step_for_a_word_is_planned_where_a_job_says_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loaded: list[str] = []
    part = SimpleNamespace(planned=lambda *_: Step("show", lambda _: Outcome()))

    def load(module: str) -> object:
        loaded.append(module)
        return part

    things = Wing("things", used=True, step="things.step", early=False, end="", word="thing")
    policy = a_policy(tmp_path, wings=(things,))
    monkeypatch.setattr(wing, "load", load)
    nothing = GRANT._replace(images=[], profiles=[])
    assert (plan.prolog(policy, a_job(), nothing, Request((), ())), loaded) == ([], [])
    steps = plan.prolog(policy, a_job(), nothing, Request((), (), words={"thing": "a"}))
    assert ([(step.name, step.wing) for step in steps][1:], loaded) == ([("show", "things")], ["things.step"])


@pytest.mark.parametrize(("shelf", "steps"), [(None, ["image"]), ("/shelf", ["image", "unpack"])])
def test_images_are_unpacked_on_a_node_that_has_a_place_for_them(
    tmp_path: Path, shelf: str | None, steps: list[str]
) -> None:
    policy = a_policy(tmp_path, rules=(a_rule(),))
    policy = policy._replace(paths=policy.paths._replace(shelf=shelf))
    job = a_job(comment="warmstart: image=reg.example.com/a:1")
    planned = plan.prolog(policy, job, GRANT, plan.request_of(policy, job, GRANT))
    assert [step.name for step in planned if step.name in ("image", "unpack")] == steps
