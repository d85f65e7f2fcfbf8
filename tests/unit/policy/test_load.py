"""What the loader takes, what it refuses, and that it says where."""

from __future__ import annotations

import json

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.lib.policy_site import MINIMAL, Compile, Site, refusals
from warmstart import wing
from warmstart.policy import compiled, load
from warmstart.policy.invalid import PolicyInvalid

ENFORCED = MINIMAL + "trust: {account: enforced}\n"
KEEP = (85, 70, 2, 7 * 86400, 0, 0)


def test_the_least_policy_has_the_documented_defaults(compiled_of: Compile) -> None:
    """A policy with a store alone gives nobody anything and has every default."""
    policy = compiled_of(MINIMAL)
    assert (policy.paths.workspace, policy.paths.store) == ("/var/tmp/warmstart", "/shared/warmstart")
    assert policy.store_user == ("warmstart", 901, 901)
    assert policy.validate_user == ("warmstart-validate", 903, 903)
    images, harvest = policy.images, policy.harvest
    assert (images.tag_ttl, images.max_size) == (86400, 100 << 30)
    assert images.registries == ()
    assert (images.proxy, images.credentials) == (None, None)
    assert (images.keep.high, images.keep.lease) == (85, 7 * 86400)
    assert (harvest.budget, harvest.max_size, harvest.deferred, harvest.only_successful) == (30, 5 << 30, 8, False)
    assert (policy.limits.min_uid, policy.trust.account) == (1000, "claimed")
    assert policy.on_error.image == "fail-job"
    assert (policy.site_label, policy.constant_path, policy.constant_cache, policy.rules) == ("bare", "none", "", ())
    assert [profile.name for profile in policy.profiles] == ["files"]


def test_images_without_a_policy_are_those_of_an_empty_one(compiled_of: Compile) -> None:
    """The importer for pyxis uses them if there is no policy."""
    assert load.default_images() == compiled_of(MINIMAL).images


CREDENTIALS = """\
images:
  registries: [a.org]
  credentials:
    {{file: /etc/c, repositories: [{{name: t, repository: "{}", match: {}}}]}}
"""


@pytest.mark.parametrize(
    ("text", "refusal"),
    [
        ("images: {tag_tll: 1h}", "3:10: images.tag_tll: unknown key; did you mean tag_ttl?"),
        ("imags: {}", "3:1: imags: unknown key; did you mean images?"),
        ("rules:\n  - name: a\n    launching: {}", "5:5: rules[0].launching: unknown key; allowed: name,"),
        ("harvest: {budget: 30}", "3:19: harvest.budget: 30 is not a duration"),
        ("harvest: {max_size: 5GB}", "3:21: harvest.max_size: '5GB' is not a size"),
        ("limits: {min_uid: 0}", "3:19: limits.min_uid: 0 is too low; at least 1"),
        ("limits: {min_uid: many}", "3:19: limits.min_uid: expected a whole number, got 'many'"),
        ("limits: {min_uid: true}", "3:19: limits.min_uid: expected a whole number, got"),
        ("images:", "3:8: images: expected a mapping, got nothing; give it a value or leave the key out"),
        ("images: []", "3:9: images: expected a mapping, got a list"),
        ("rules: {name: a}", "3:8: rules: expected a list, got a mapping"),
        ("on_error: {image: x}", "3:19: on_error.image: expected 'fail-job' or 'run-without', got 'x'"),
        (
            "images: {registries: [a.org], credentials: {file: /etc/c, repositories: []}}",
            "3:73: images.credentials.repositories: is empty; name at least one",
        ),
        (CREDENTIALS.format("a.org/t/*", "{}"), "6:77: images.credentials.repositories[0].match: is empty; name who"),
        (CREDENTIALS.format("a.org/t/*", "{group: t, account: t}"), "6:88: images.credentials.repositories[0].match"),
        (CREDENTIALS.format("b.org/t/*", "{group: t}"), "6:57: images.credentials.repositories[0].repository: write"),
        (CREDENTIALS.format("a.org", "{group: t}"), "6:57: images.credentials.repositories[0].repository: write"),
        ("site_label: 9", "3:13: site_label: expected a text, got 9; put it in quotes: '9'"),
        ("site_label: a b", "3:13: site_label: 'a b' is not a name"),
        ("images: {registries: [NVCR.io]}", "3:23: images.registries[0]: 'NVCR.io' is not a registry"),
        ("images: {keep: {high: 85}}", "3:23: images.keep.high: 85 is not a share"),
        ("images: {keep: {high: 100%}}", "3:23: images.keep.high: '100%' is not a share"),
        ("images: {keep: {low: 90%}}", "3:22: images.keep.low: 90% is not below keep.high, 85%"),
        ("images: {registries: ['https://a.org']}", "3:23: images.registries[0]: 'https://a.org' is not a registry"),
        ("rules:\n  - profiles: [numba]", "4:5: rules[0].name: missing"),
        ("rules:\n  - {name: a, profiles: [nunba]}", "4:26: rules[0].profiles[0]: no profile 'nunba'; did you mean"),
        ("rules:\n  - {name: a}\n  - {name: a}", "5:12: rules[1].name: another rule has the name a"),
        ("rules:\n  - {name: a, images: [x]}", "4:24: rules[0].images[0]: 'x' is not an image"),
        (
            "rules:\n  - {name: a, images: ['docker://a.org/x:1']}",
            "4:24: rules[0].images[0]: registry a.org is not in images.registries",
        ),
        ("rules:\n  - {name: a, images: ['docker://ubuntu']}", "4:24: rules[0].images[0]: registry docker.io"),
        ("rules:\n  - {name: a, env: {A: 1}}", "4:24: rules[0].env.A: expected a text, got 1; put it in quotes"),
        ("rules:\n  - {name: a, env: {A: yes, B: true}}", "4:32: rules[0].env.B: expected a text, got true; put"),
        ('rules:\n  - {name: a, env: {A: "x\\ny"}}', "4:24: rules[0].env.A: 'x\\ny' is not one line"),
        ("rules:\n  - {name: a, env: {A-B: x}}", "4:21: rules[0].env: 'A-B' is not a variable's name"),
        ("rules:\n  - {name: a, env: {WARMSTART_CACHE: x}}", "4:21: rules[0].env.WARMSTART_CACHE: is reserved"),
        ("rules:\n  - {name: a, match: {user: []}}", "4:29: rules[0].match.user: is empty; name at least one"),
        ("rules:\n  - {name: a, match: {licence: x}}", "4:23: rules[0].match.licence: unknown key"),
        ("site_label: a\nsite_label: b", "4:1: duplicate key 'site_label'"),
        ("? [a]\n: b", "3:3: a key must be a plain name"),
        ("images: &a {}", "3:9: not YAML: anchors and aliases are not allowed"),
        ("images: *a", "3:9: not YAML: anchors and aliases are not allowed"),
        ("images: !!python/object:os.system {}", "3:9: not YAML: tags are not allowed"),
        ("a: [[[[[[[[[]]]]]]]]]", "3:11: not YAML: nested deeper than 8"),
        ("a: [", "4:1: not YAML: "),
        ("\tb: 1", "3:1: not YAML: "),
        ('a: "\\UFFFFFFFF"', "3:"),
        ("---\nb: 1", "3:1: not YAML: "),
    ],
)  # fmt: skip
def test_a_wrong_line_is_refused_with_its_place_and_what_to_write(site: Site, text: str, refusal: str) -> None:
    """Each kind of mistake gives one problem that starts with its line and column."""
    problems = refusals(site, f"{MINIMAL}{text}\n")
    assert len(problems) == 1
    assert problems[0].startswith(refusal)


@pytest.mark.parametrize(
    ("text", "refusal"),
    [
        ("", "1:1: paths: missing"),
        ("- a", "1:1: the policy: expected a mapping, got a list"),
        ("version: 2\npaths: {store: /s}", "1:10: version: expected 1, got 2"),
        ("version: 1\npaths: {}", "2:8: paths.store: missing"),
        ("version: 1\nsite_label: \udcff", "2:13: not YAML: byte 0xff is not UTF-8"),
    ],
)
def test_a_policy_that_is_none_is_refused(site: Site, text: str, refusal: str) -> None:
    """Without version and store, or without being UTF-8, a file is no policy."""
    assert refusals(site, text)[0].startswith(refusal)


@pytest.mark.parametrize(
    ("paths", "refusal"),
    [
        ("store: shared", "paths.store: 'shared' is not an absolute path"),
        ("store: /a/../b", "paths.store: write /b, without"),
        ("store: /a/", "paths.store: write /a, without"),
        ("store: '/a b'", "paths.store: '/a b' is not an absolute path"),
        ("store: /tmp/store", "paths.store: may not be below /tmp"),
        ("store: /s, workspace: /dev/shm/w", "paths.workspace: may not be below /dev"),
        (f"store: /s, workspace: /{'w' * 46}", "in TMPDIR (unix(7)); write at most 46 bytes"),
        ("store: /s, workspace: /s", "paths.workspace: may not be in paths.store (/s)"),
        ("store: /s, workspace: /s/w", "paths.workspace: may not be in paths.store (/s)"),
        ("store: /w/s, workspace: /w", "paths.store: may not be in paths.workspace (/w)"),
        ("store: /s, audit: /s/a.jsonl", "paths.audit: may not be in paths.store (/s)"),
        ("store: /s, workspace: /c/w, cache: /c", "paths.workspace: may not be in paths.cache (/c)"),
        ("store: /s, cache: /s/c", "paths.cache: may not be in paths.store (/s)"),
        ("store: /s, shelf: /dev/shm/s", "paths.shelf: may not be below /dev"),
        ("store: /s, shelf: /w/s, workspace: /w", "paths.shelf: may not be in paths.workspace (/w)"),
    ],
)
def test_impossible_paths_are_refused(site: Site, paths: str, refusal: str) -> None:
    """A path must be absolute, normal, out of /tmp and /dev, and apart from the others."""
    assert any(refusal in problem for problem in refusals(site, f"version: 1\npaths: {{{paths}}}\n"))


def test_only_a_link_may_lie_in_tmp(site: Site, compiled_of: Compile) -> None:
    """The job's own /tmp, where job_container gives it one; everything else there is anybody's."""
    text = "version: 1\nconstant_path: {way}\npaths: {{store: /s, cache: /tmp/.ws}}\n"
    assert compiled_of(text.format(way="link")).paths.cache == "/tmp/.ws"
    assert refusals(site, text.format(way="namespace"))[0].endswith("paths.cache: may not be below /tmp")


def test_neighbours_with_a_common_prefix_are_apart(compiled_of: Compile) -> None:
    """/data/ws2 is not below /data/ws."""
    text = "version: 1\npaths: {store: /data/ws, workspace: /data/ws2, audit: /tmpfs/a}\n"
    assert compiled_of(text).paths.workspace == "/data/ws2"


@pytest.mark.parametrize(
    ("line", "refusal"),
    [
        ("store_user: nobody-here", "store_user: no account 'nobody-here' on this node"),
        ("store_user: root", "store_user: 'root' has root's uid or group"),
        ("import_user: warmstart", "import_user: 'warmstart' has the uid of store_user"),
        ("validate_user: 'a b'", "validate_user: 'a b' is not a user name"),
    ],
)
def test_the_three_accounts_exist_and_differ(site: Site, line: str, refusal: str) -> None:
    """Store, import and validate account are three unprivileged uids of this node."""
    assert refusal in refusals(site, f"{MINIMAL}{line}\n")[0]


RIGHTS = [
    ("scope: account", "scope: account needs trust.account: enforced"),
    ("scope: site, match: {account: ml}", "match.account: scope site may not depend on a claimed attribute"),
    ("scope: site, match: {qos: high}", "match.qos: scope site may not depend on a claimed attribute"),
    ("mode: observe, match: {node: 'gpu*'}", "mode: a rule that matches node may only say enforce"),
    ("match: {node: 'n[1-'}", "match.node[0]: 'n[1-' is not a host list, such as n[01-16],login*: a bracket too many"),
    ("match: {node: 'n?'}", "match.node[0]: 'n?' is not a host list"),
    ("match: {partition: 'gpu[ab]'}", "match.partition[0]: 'gpu[ab]' is not a pattern: one line"),
    ("publish: {users: [svc_ci]}, match: {partition: ci}", "publish: needs scope: account or scope: site"),
    ("scope: user, publish: {users: [svc_ci]}, match: {partition: ci}", "publish: needs scope: account or"),
    ("scope: site, publish: {users: [svc_ci]}", "publish: needs match.partition in the same rule"),
    ("scope: site, publish: {users: []}, match: {partition: ci}", "publish.users: is empty"),
    ("scope: site, publish: {}, match: {partition: ci}", "publish.users: missing"),
    ("scope: site, publish: {users: [ghost]}, match: {partition: ci}", "publish.users[0]: no user 'ghost'"),
    ("scope: site, publish: {users: ['CORP\\ghost']}, match: {partition: ci}", "publish.users[0]: no user"),
    ("scope: site, publish: {users: [a/b]}, match: {partition: ci}", "publish.users[0]: 'a/b' is not a user"),
    ("scope: site, publish: {users: ['svc*']}, match: {partition: ci}", "publish.users[0]: 'svc*' is not a user"),
    ("scope: site, publish: {users: [operator]}, match: {partition: ci}", "'operator' has uid 800, below limits"),
    ("scope: site, publish: {users: [svc_ci]}, match: {partition: '*'}", "match.partition[0]: '*' matches every"),
    ("scope: site, publish: {users: [svc_ci]}, match: {partition: [ci, '**']}", "match.partition[1]: '**' matches"),
]  # fmt: skip


@pytest.mark.threat(3, 9)
@pytest.mark.parametrize(("rule", "refusal"), RIGHTS)
def test_rights_on_claims_are_refused(site: Site, rule: str, refusal: str) -> None:
    """What reads or publishes above the user scope rests on verified attributes (docs/threats.md, rows 3 and 9)."""
    problems = refusals(site, f"{MINIMAL}rules:\n  - {{name: a, {rule}}}\n")
    assert len(problems) == 1
    assert f"rules[0].{refusal}" in problems[0] or refusal in problems[0]


@pytest.mark.threat(54)
@pytest.mark.parametrize(
    "rule",
    [
        "scope: account",
        "scope: site, match: {account: ml}",
        "scope: account, publish: {users: [svc_ci]}, match: {partition: ci, account: 'ml-*'}",
    ],
)
def test_an_enforced_account_may_grant_rights(compiled_of: Compile, rule: str) -> None:
    """Where slurmctld enforces associations the account counts as verified."""
    assert compiled_of(f"{ENFORCED}rules:\n  - {{name: a, {rule}}}\n").rules[0].scope


def test_a_rule_on_what_no_node_knows_is_refused(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """It would match nothing; a wing that tells it says what is missing."""
    rule = f"{MINIMAL}rules:\n  - {{name: a, match: {{job_name: x}}}}\n"
    monkeypatch.setattr(wing, "found", dict)
    found = "4:23: rules[0].match.job_name: no node knows this attribute: slurmd does not tell it"
    assert refusals(site, rule) == [found]


def test_what_slurmd_does_not_tell_is_noted(compiled_of: Compile) -> None:
    """The nodes know that they need it."""
    assert compiled_of(f"{MINIMAL}rules:\n  - {{name: a, match: {{qos: ci}}}}\n").unseen == ("qos",)


def test_a_claimed_account_may_choose_what_gives_no_right(compiled_of: Compile) -> None:
    """Images and variables may depend on free text."""
    assert compiled_of(f"{MINIMAL}rules:\n  - {{name: a, match: {{account: ml}}, env: {{A: b}}}}\n").rules


def test_all_problems_are_listed_in_the_order_of_the_file(site: Site) -> None:
    """An admin sees every mistake at once, and a bound on their number."""
    text = MINIMAL + "".join(f"unknown_{number}: x\n" for number in range(30))
    problems = refusals_listing(site, text)
    assert len(problems) == 21
    assert [line.split(":")[1] for line in problems[:20]] == [str(line) for line in range(3, 23)]
    assert problems[20] == "and 10 more"


def refusals_listing(site: Site, text: str) -> list[str]:
    """Return the whole listing."""
    site.write(text)
    with pytest.raises(PolicyInvalid) as caught:
        site.compiled()
    return str(caught.value).splitlines()


def test_words_that_yaml_11_would_convert_stay_texts(compiled_of: Compile) -> None:
    """`no`, `on`, octal and sexagesimal looking names are names."""
    text = f"{MINIMAL}rules:\n  - {{name: a, match: {{user: [no, on, '010', 12:30, 2024-01-01]}}, env: {{A: off}}}}\n"
    rule = compiled_of(text).rules[0]
    assert [*rule.match[0].globs] == ["no", "on", "010", "12:30", "2024-01-01"]
    assert rule.env == {"A": "off"}


def test_conf_d_adds_rules_in_the_order_of_its_names(site: Site) -> None:
    """Rules of conf.d stand behind policy.yaml's, with their own file and line."""
    site.write(MINIMAL + "rules:\n  - {name: first}\n")
    last = site.add("20-b.yaml", "# two\nrules:\n  - {name: third}\n")
    site.add("10-a.yaml", "rules: [{name: second}]\n")
    site.add("30-empty.yaml", "# nothing yet\n")
    site.add(".hidden.yaml", "nonsense")
    site.add("README", "nonsense")
    rules = site.compiled().rules
    assert [rule.name for rule in rules] == ["first", "second", "third"]
    assert rules[2].place == f"{last}:3"


@pytest.mark.parametrize(
    ("text", "refusal"),
    [
        ("limits: {min_uid: 1}", "1:1: 'limits': a file in conf.d may hold only rules"),
        ("rules: {}", "1:8: rules: expected a list"),
        ("[]", "1:1: expected a mapping with the key rules"),
        ("rules:\n  - {name: b, scop: user}", "2:15: rules[1].scop: unknown key; did you mean scope?"),
        ("rules:\n  - {name: a}", "2:12: rules[1].name: another rule has the name a"),
    ],
)
def test_a_wrong_file_in_conf_d_is_named(site: Site, text: str, refusal: str) -> None:
    """A mistake in conf.d is told with that file's name, line and column."""
    site.write(MINIMAL + "rules:\n  - {name: a}\n")
    path = site.add("x.yaml", text)
    with pytest.raises(PolicyInvalid) as caught:
        site.compiled()
    assert str(caught.value).startswith(f"{path}:{refusal}")


WORDS = st.sampled_from(
    ["version", "paths", "rules", "match", "publish", "users", "scope", "env", "name", "images", "1", "/s", "site",
     "~", "null", "true", "x", "4m", "*", "&a", "!t", "'", '"', "\\", "\t", "\r", "#", "%YAML", "---", "...", "?", "|",
     "<<", "[", "]", "{", "}", ",", ":", "- ", "\n", "\n  ", "\n    ", ": ", "\x85", "\u2028", "\ufeff", "\udc80"]
)  # fmt: skip


@settings(max_examples=300, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.one_of(st.text(), st.lists(WORDS).map("".join), st.lists(WORDS).map(lambda w: MINIMAL + "".join(w))))
def test_any_text_compiles_or_is_refused_with_a_place(site: Site, text: str) -> None:
    """No text makes the loader fail in any other way."""
    try:
        site.write(text)
    except UnicodeEncodeError:  # a surrogate that no bytes stand for: no such file exists
        return
    try:
        policy = site.compiled()
    except PolicyInvalid as error:
        line, column = error.fields["line"], error.fields["column"]
        assert isinstance(line, int)
        assert isinstance(column, int)
        assert line >= 1
        assert column >= 1
        assert str(error).isprintable() or "\n" in str(error)  # noqa: PT017
    else:
        assert compiled.decode(json.loads(compiled.encode(policy))) == policy
