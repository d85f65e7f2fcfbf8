"""What the loader takes, what it refuses, and that it says where."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.lib.policy_site import MINIMAL, Compile, Site, refusals
from warmstart.policy import keys
from warmstart.policy.document import PolicyInvalid
from warmstart.profiles import registry
from warmstart.profiles.contract import FILES

ENFORCED = MINIMAL + "trust: {account: enforced}\n"


def test_the_least_policy_has_the_documented_defaults(compiled_of: Compile) -> None:
    policy = compiled_of(MINIMAL)
    assert (policy.paths.workspace, policy.paths.store) == ("/var/tmp/warmstart", "/shared/warmstart")
    assert policy.store_user == ("warmstart", 901, 901)
    assert policy.validate_user == ("warmstart-validate", 903, 903)
    images, harvest = policy.images, policy.harvest
    assert (images.tag_ttl, images.max_size) == (86400, 100 << 30)
    assert images.registries == ()
    assert (images.proxy, images.credentials) == (None, None)
    assert (images.keep.high, images.keep.lease) == (85, 7 * 86400)
    assert (harvest.budget, harvest.max_size, harvest.waiting, harvest.only_successful) == (30, 5 << 30, 64, False)
    assert (policy.limits.min_uid, policy.trust.account) == (1000, "claimed")
    assert policy.on_error.image == "fail-job"
    assert (policy.site_label, policy.constant_path, policy.constant_cache, policy.rules) == ("bare", "none", "", ())
    assert [profile.name for profile in policy.profiles] == ["files"]


def test_what_is_not_said_is_as_the_classes_have_it(compiled_of: Compile) -> None:
    """The importer for pyxis uses these images if there is no policy."""
    assert compiled_of(MINIMAL).images == keys.Images()


def test_only_a_link_may_lie_in_tmp(site: Site, compiled_of: Compile) -> None:
    """The job's own /tmp, where job_container gives it one; everything else there is anybody's."""
    text = "version: 1\nconstant_path: {way}\npaths: {{store: /s, cache: /tmp/.ws}}\n"
    assert compiled_of(text.format(way="link")).paths.cache == "/tmp/.ws"
    assert refusals(site, text.format(way="namespace"))[0].endswith("paths.cache: may not be below /tmp")


def test_neighbours_with_a_common_prefix_are_apart(compiled_of: Compile) -> None:
    text = "version: 1\npaths: {store: /data/ws, workspace: /data/ws2, audit: /tmpfs/a}\n"
    assert compiled_of(text).paths.workspace == "/data/ws2"


PROFILE = (
    MINIMAL
    + """\
profiles:
  mytool:
    variables: {MYTOOL_CACHE: "{dir}/v1", MYTOOL_MODE: fast}
    entries: {"v1/*/": [meta.json], "**/*.bin": []}
    never: ["*.log"]
    lock: .lock
    formats: {"*.json": json, "*.so": library}
    facts: [cpu, gpu]
    relocation: relocatable
    max_size: 2MiB
rules:
  - {name: all, profiles: [mytool, numba]}
"""
)


def test_a_profile_of_the_sites_own_is_compiled_whole(compiled_of: Compile) -> None:
    policy = compiled_of(PROFILE)
    mytool, files, granted = policy.profiles
    assert mytool.name == "mytool"
    assert mytool.variables == {"MYTOOL_CACHE": "{dir}/v1", "MYTOOL_MODE": "fast"}
    assert mytool.entries == {"v1/*/": ["meta.json"], "**/*.bin": []}
    assert (mytool.never, mytool.lock) == (("*.log",), ".lock")
    assert list(mytool.formats.items()) == [("*.json", "json"), ("*.so", "library")]
    assert (mytool.facts, mytool.relocation, mytool.max_size) == (("cpu", "gpu"), "relocatable", 2 << 20)
    assert (files.name, files.facts, files.entries) == (FILES, ("declared", "gpu"), {"**": []})
    assert policy.rules[0].profiles == ("mytool", "numba")
    assert granted == registry.get("numba")


def test_what_a_profile_leaves_out_is_the_careful_choice(compiled_of: Compile) -> None:
    policy = compiled_of(MINIMAL + 'profiles: {t: {variables: {T: "{dir}"}, entries: {"*": []}}}\n')
    mytool = policy.profiles[0]
    assert (mytool.relocation, mytool.facts, mytool.max_size) == ("constant-path", (), 1 << 30)
    assert [profile.only_successful for profile in policy.profiles] == [False, True]


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
    assert compiled_of(f"{ENFORCED}rules:\n  - {{name: a, {rule}}}\n").rules[0].scope


def test_what_slurmd_does_not_tell_is_noted(compiled_of: Compile) -> None:
    assert compiled_of(f"{MINIMAL}rules:\n  - {{name: a, match: {{qos: ci}}}}\n").unseen == ("qos",)


def test_a_claimed_account_may_choose_what_gives_no_right(compiled_of: Compile) -> None:
    assert compiled_of(f"{MINIMAL}rules:\n  - {{name: a, match: {{account: ml}}, env: {{A: b}}}}\n").rules


def test_words_that_yaml_11_would_convert_stay_texts(compiled_of: Compile) -> None:
    text = f"{MINIMAL}rules:\n  - {{name: a, match: {{user: [no, on, '010', 12:30, 2024-01-01]}}, env: {{A: off}}}}\n"
    rule = compiled_of(text).rules[0]
    assert list(rule.match.user or ()) == ["no", "on", "010", "12:30", "2024-01-01"]
    assert rule.env == {"A": "off"}


def test_conf_d_adds_rules_in_the_order_of_its_names(site: Site) -> None:
    site.write(MINIMAL + "rules:\n  - {name: first}\n")
    site.add("20-b.yml", "# two\nrules:\n  - {name: third}\n")
    site.add("10-a.yaml", "rules: [{name: second}]\n")
    site.add("30-empty.yaml", "# nothing yet\n")
    site.add(".hidden.yaml", "nonsense")
    site.add("README", "nonsense")
    assert [rule.name for rule in site.compiled().rules] == ["first", "second", "third"]


WORDS = st.sampled_from(
    ["version", "paths", "rules", "match", "publish", "users", "scope", "env", "name", "images", "1", "/s", "site",
     "~", "null", "true", "x", "4m", "*", "&a", "!t", "'", '"', "\\", "\t", "\r", "#", "%YAML", "---", "...", "?", "|",
     "<<", "[", "]", "{", "}", ",", ":", "- ", "\n", "\n  ", "\n    ", ": ", "\x85", "\u2028", "\ufeff", "\udc80"]
)  # fmt: skip


@settings(max_examples=300)
@given(st.one_of(st.text(), st.lists(WORDS).map("".join), st.lists(WORDS).map(lambda w: MINIMAL + "".join(w))))
def test_any_text_compiles_or_is_refused_with_a_place(site: Site, text: str) -> None:
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
        assert keys.decode(json.loads(keys.encode(policy))) == policy
