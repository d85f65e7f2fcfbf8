"""An admin's mistakes in a policy: what is written, where it is wrong (line:column), and a word of what is said.

What a mistake does to a host, or Slurm's configuration to a policy, is in tests/lib/mistakes.py.
"""

from __future__ import annotations

import pytest

from tests.lib.policy_site import MINIMAL, Site, find_user, refusals
from warmstart import wing
from warmstart.policy import load
from warmstart.policy.document import Document, PolicyInvalid
from warmstart.policy.warnings import Known, warnings

TOOL = "variables: {T: '{dir}'}"
OTHER = "rules:\n  - {name: other, env: {OTHER: x}}\n  - name: a\n"
CREDENTIALS = """\
images:
  registries: [a.org]
  credentials: {{file: /etc/c, repositories: [{{name: t, repository: "{}", match: {}}}]}}
"""
BELOW = [  # below version and paths.store, which are two lines
    # Keys and types.
    ("imags: {}", "3:1", "did you mean images"),
    ("images: {tag_tll: 1h}", "3:10", "images.tag_tll: unknown key; did you mean tag_ttl"),
    ("rules:\n  - name: a\n    launching: {}", "5:5", "rules[0].launching: unknown key; allowed: name,"),
    ("rules:\n  - {name: a, match: {licence: x}}", "4:23", "match.licence: unknown key"),
    ("rules:\n  - profiles: [numba]", "4:5", "rules[0].name: missing"),
    ("site_label: a\nsite_label: b", "4:1", "duplicate key"),
    ("? [a]\n: b", "3:3", "a key must be a plain name"),
    ("limits: {min_uid: 0}", "3:19", "0 is too low; at least 1"),
    ("limits: {min_uid: many}", "3:19", "expected a whole number, got 'many'"),
    ("limits: {min_uid: true}", "3:19", "expected a whole number, got"),
    ("images:", "3:8", "expected a mapping, got nothing; give it a value or leave the key out"),
    ("images: []", "3:9", "expected a mapping, got a list"),
    ("rules: {name: a}", "3:8", "expected a list, got a mapping"),
    ("on_error: {image: x}", "3:19", "expected 'fail-job' or 'run-without', got 'x'"),
    ("harvest: {only_successful: yes}", "3:28", "expected true or false, got 'yes'"),
    ("site_label: 9", "3:13", "expected a text, got 9; put it in quotes: '9'"),
    # Not YAML, or more of it than a policy needs.
    ("images: &a {}", "3:9", "anchors and aliases are not allowed"),
    ("images: *a", "3:9", "anchors and aliases are not allowed"),
    ("images: !!python/object:os.system {}", "3:9", "tags are not allowed"),
    ("images: *\n", "3:10", "in quotes: '*'"),
    ("images: [*, b]\n", "3:11", "in quotes: '*'"),
    ("images: @b\n", "3:9", "cannot start any token"),
    ("a: 1\nb: \x07\n", "4:4", "character 0x7"),
    ("a: [[[[[[[[[]]]]]]]]]", "3:11", "nested deeper than 8"),
    ("a: [", "4:1", "not YAML"),
    ("\tb: 1", "3:1", "that cannot start"),
    ('a: "\\UFFFFFFFF"', "3:7", "not YAML"),
    ("---\nb: 1", "3:1", "not YAML"),
    # Values.
    ("harvest: {budget: 30}", "3:19", "30 is not a duration"),
    ("harvest: {max_size: 5GB}", "3:21", "'5GB' is not a size"),
    ("site_label: a b", "3:13", "not a name"),
    ("images: {keep: {high: 85}}", "3:23", "85 is not a share"),
    ("images: {keep: {high: 100%}}", "3:23", "'100%' is not a share"),
    ("images: {keep: {low: 90%}}", "3:22", "90% is not below keep.high, 85%"),
    ("images: {keep: {lease: 2h}}", "3:24", "is less than 1d"),
    # Accounts.
    ("store_user: nobody-here", "3:13", "no account 'nobody-here'"),
    ("store_user: root", "3:13", "root's uid"),
    ("import_user: warmstart", "3:14", "has the uid of store_user"),
    ("validate_user: 'a b'", "3:16", "not a user name"),
    # Images.
    ("images: {registries: [NVCR.io]}", "3:23", "not a registry"),
    ("images: {registries: ['https://a.org']}", "3:23", "not a registry"),
    ("rules:\n  - {name: a, images: [x]}", "4:24", "'x' is not an image"),
    ("rules:\n  - {name: a, images: ['docker://a.org/x:1']}", "4:24", "a.org is not in images.registries"),
    ("rules:\n  - {name: a, images: ['docker://ubuntu']}", "4:24", "docker.io is not in images.registries"),
    (CREDENTIALS.format("a.org/t/*", "{}"), "5:88", "match: is empty; name who"),
    (CREDENTIALS.format("a.org/t/*", "{group: t, account: t}"), "5:99", "claimed"),
    (CREDENTIALS.format("b.org/t/*", "{group: t}"), "5:68", "repository: write"),
    (CREDENTIALS.format("a.org", "{group: t}"), "5:68", "repository: write"),
    (
        "images: {registries: [a.org], credentials: {file: /etc/c, repositories: []}}",
        "3:73",
        "is empty; name at least one",
    ),
    # Rules.
    ("rules:\n  - {name: a, profiles: [nunba]}", "4:26", "no profile 'nunba'; did you mean"),
    ("rules:\n  - {name: a, profiles: [files]}", "4:26", "no profile 'files'"),
    ("rules:\n  - {name: a}\n  - {name: a}", "5:12", "another one has the name a"),
    ("rules:\n  - {name: a, env: {A: 1}}", "4:24", "put it in quotes"),
    ("rules:\n  - {name: a, env: {A: yes, B: true}}", "4:32", "got true; put"),
    ('rules:\n  - {name: a, env: {A: "x\\ny"}}', "4:24", "not one line"),
    ("rules:\n  - {name: a, env: {A-B: x}}", "4:21", "'A-B' is not a variable's name"),
    ("rules:\n  - {name: a, env: {WARMSTART_CACHE: x}}", "4:21", "reserved for warmstart or Slurm"),
    ("rules:\n  - {name: a, match: {user: []}}", "4:29", "is empty; name at least one"),
    (f"{OTHER}    override: [NUMBA_CACHE]", "6:16", "nothing sets NUMBA_CACHE"),
    (f"{OTHER}    override: [OTHER, WARMSTART_CACHE]", "6:23", "or is reserved for warmstart"),
    (f"{OTHER}    override: [A=1]", "6:16", "'A=1' is not a variable's name"),
    (f"{OTHER}    override: OTHER", "6:15", "expected a list"),
    # Profiles of the site's own.
    (f"profiles:\n  numba: {{{TOOL}, entries: {{'*': []}}}}", "4:3", "is a profile of warmstart"),
    (f"profiles:\n  files: {{{TOOL}, entries: {{'*': []}}}}", "4:3", "is a profile of warmstart"),
    (f"profiles:\n  My: {{{TOOL}, entries: {{'*': []}}}}", "4:3", "'My' is not a profile's name"),
    (f"profiles:\n  t: {{{TOOL}}}", "4:6", "entries: missing"),
    (f"profiles:\n  t: {{{TOOL}, entries: {{'*': []}}, nevr: []}}", "4:52", "did you mean never"),
    (f"profiles:\n  t: {{{TOOL}, entries: {{}}}}", "4:41", "entries: is empty"),
    (f"profiles:\n  t: {{{TOOL}, entries: {{'../*': []}}}}", "4:42", "'../*' is not a pattern of paths"),
    (f"profiles:\n  t: {{{TOOL}, entries: {{'/a': []}}}}", "4:42", "'/a' is not a pattern of paths"),
    (f"profiles:\n  t: {{{TOOL}, entries: {{'**/a/**': []}}}}", "4:42", "'**/a/**' is not a pattern of paths"),
    (f"profiles:\n  t: {{{TOOL}, entries: {{'a**': []}}}}", "4:42", "'a**' is not a pattern of paths"),
    (f"profiles:\n  t: {{{TOOL}, entries: {{'(a|b)': []}}}}", "4:42", "'(a|b)' is not a pattern of paths"),
    (f"profiles:\n  t: {{{TOOL}, entries: {{'{{a,b}}': []}}}}", "4:42", "'{a,b}' is not a pattern of paths"),
    (f"profiles:\n  t: {{{TOOL}, entries: {{'a{{b}}/c': []}}}}", "4:42", "'a{b}/c' is not a pattern of paths"),
    (f"profiles:\n  t: {{{TOOL}, entries: {{'*': []}}, never: [a/b]}}", "4:60", "'a/b' is not a pattern of names"),
    (f"profiles:\n  t: {{{TOOL}, entries: {{'*': []}}, formats: {{'*': elf}}}}", "4:67", "formats.'*': expected 'any'"),
    (f"profiles:\n  t: {{{TOOL}, entries: {{'*': []}}, facts: [disk]}}", "4:60", "expected 'cpu'"),
    (f"profiles:\n  t: {{{TOOL}, entries: {{'*': []}}, relocation: rewrite}}", "4:64", "expected 'relocatable'"),
    ("profiles:\n  t: {variables: {T: x}, entries: {'*': []}}", "4:7", "none contains {dir}"),
    (
        "profiles:\n  t: {variables: {SLURM_T: '{dir}'}, entries: {'*': []}}",
        "4:19",
        "reserved for warmstart or Slurm",
    ),
]
WHOLE = [
    ("", "1:1", "paths: missing"),
    ("- a", "1:1", "the policy: expected a mapping, got a list"),
    ("version: 2\npaths: {store: /s}", "1:10", "expected 1, got 2"),
    ("version: 1\npaths: {}", "2:8", "paths.store: missing"),
    ("version: 1\nsite_label: \udcff", "2:13", "save the file as UTF-8"),
]
PATHS = [  # paths: {…} of a policy
    ("store: shared", "2:16", "not an absolute path"),
    ("store: '/a b'", "2:16", "not an absolute path"),
    ("store: /a/../b", "2:16", "without '..'"),
    ("store: /a/", "2:16", "without '..'"),
    ("store: /tmp/store", "2:16", "below /tmp"),
    ("store: /s, cache: /tmp/c", "2:27", "below /tmp"),
    ("store: /s, workspace: /dev/shm/w", "2:31", "below /dev"),
    ("store: /s, shelf: /dev/shm/s", "2:27", "below /dev"),
    (f"store: /s, workspace: /{'w' * 46}", "2:31", "at most 46 bytes"),
    ("store: /s, workspace: /s/w", "2:31", "paths.workspace: may not be in paths.store"),
    ("store: /w/s, workspace: /w", "2:16", "paths.store: may not be in paths.workspace"),
    ("store: /s, audit: /s/a.jsonl", "2:27", "paths.audit: may not be in paths.store"),
    ("store: /s, workspace: /c/w, cache: /c", "2:31", "paths.workspace: may not be in paths.cache"),
    ("store: /s, cache: /s/c", "2:27", "paths.cache: may not be in paths.store"),
    ("store: /s, shelf: /w/s, workspace: /w", "2:27", "paths.shelf: may not be in paths.workspace"),
]
REFUSED = [
    *((f"{MINIMAL}{text}\n", place, word) for text, place, word in BELOW),
    *((f"version: 1\npaths: {{{paths}}}\n", place, word) for paths, place, word in PATHS),
    *WHOLE,
]


@pytest.mark.parametrize(("text", "place", "word"), REFUSED)
def test_a_mistake_is_refused_where_it_stands(site: Site, text: str, place: str, word: str) -> None:
    problems = refusals(site, text)
    assert problems[0].startswith(f"{place}: ")
    assert word in problems[0]
    assert len(problems) == 1 or text in ("", "version: 2\npaths: {store: /s}"), problems


RIGHTS = [  # the rest of a rule
    ("scope: account", "4:22", "scope: account needs trust.account: enforced"),
    ("scope: site, match: {account: ml}", "4:36", "match.account: scope site may not depend on a claimed attribute"),
    ("scope: site, match: {qos: high}", "4:36", "match.qos: scope site may not depend on a claimed attribute"),
    ("mode: observe, match: {node: 'gpu*'}", "4:21", "may only say enforce"),
    ("match: {node: 'n[1-'}", "4:29", "a bracket too many"),
    ("match: {node: 'n?'}", "4:29", "'n?' is not a host list"),
    ("match: {partition: 'gpu[ab]'}", "4:34", "'gpu[ab]' is not a pattern"),
    ("publish: {users: [svc_ci]}, match: {partition: ci}", "4:15", "needs scope: account or scope: site"),
    ("scope: user, publish: {users: [svc_ci]}, match: {partition: ci}", "4:28", "needs scope: account or"),
    ("scope: site, publish: {users: [svc_ci]}", "4:28", "needs match.partition in the same rule"),
    ("scope: site, publish: {users: []}, match: {partition: ci}", "4:45", "publish.users: is empty"),
    ("scope: site, publish: {}, match: {partition: ci}", "4:37", "publish.users: missing"),
    ("scope: site, publish: {users: [ghost]}, match: {partition: ci}", "4:46", "no user 'ghost'"),
    ("scope: site, publish: {users: ['CORP\\ghost']}, match: {partition: ci}", "4:46", "no user"),
    ("scope: site, publish: {users: [a/b]}, match: {partition: ci}", "4:46", "'a/b' is not a user"),
    ("scope: site, publish: {users: ['svc*']}, match: {partition: ci}", "4:46", "'svc*' is not a user"),
    ("scope: site, publish: {users: [operator]}, match: {partition: ci}", "4:46", "uid 800, below limits"),
    ("scope: site, publish: {users: [svc_ci]}, match: {partition: '*'}", "4:75", "'*' matches every"),
    ("scope: site, publish: {users: [svc_ci]}, match: {partition: [ci, '**']}", "4:80", "'**' matches"),
]


@pytest.mark.threat(3, 9)
@pytest.mark.parametrize(("rule", "place", "word"), RIGHTS)
def test_a_right_that_rests_on_a_claim_is_refused(site: Site, rule: str, place: str, word: str) -> None:
    """What reads or publishes above the user scope rests on verified attributes (docs/threats.md, rows 3 and 9)."""
    (problem,) = refusals(site, f"{MINIMAL}rules:\n  - {{name: a, {rule}}}\n")
    assert problem.startswith(f"{place}: ")
    assert word in problem


def test_a_rule_on_what_no_wing_tells_is_refused(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wing, "found", dict)
    (problem,) = refusals(site, f"{MINIMAL}rules:\n  - {{name: a, match: {{job_name: x}}}}\n")
    assert problem.startswith("4:23: rules[0].match.job_name: no node knows this attribute")


ADDED = [  # to conf.d, beside a policy whose rule is a
    ("limits: {min_uid: 1}", "1:1", "may hold only rules"),
    ("rules: {}", "1:8", "expected a list"),
    ("[]", "1:1", "expected a mapping with the key rules"),
    ("rules:\n  - {name: b, scop: user}", "2:15", "rules[1].scop: unknown key"),
    ("rules:\n  - {name: a}", "2:12", "another one has the name a"),
]


@pytest.mark.parametrize(("text", "place", "word"), ADDED)
def test_a_mistake_in_conf_d_has_that_files_name(site: Site, text: str, place: str, word: str) -> None:
    site.write(MINIMAL + "rules:\n  - {name: a}\n")
    path = site.add("x.yaml", text)
    with pytest.raises(PolicyInvalid) as caught:
        site.compiled()
    assert str(caught.value).startswith(f"{path}:{place}: ")
    assert word in str(caught.value)


def test_a_mistake_in_policy_yaml_is_told_once_beside_conf_d(site: Site) -> None:
    site.add("x.yaml", "rules: [{name: b}]\n")
    assert len(refusals(site, f"{MINIMAL}rules: x\n")) == 1


def test_all_mistakes_are_listed_in_the_order_of_the_file_up_to_a_bound(site: Site) -> None:
    site.write(MINIMAL + "".join(f"unknown_{number}: x\n" for number in range(30)))
    with pytest.raises(PolicyInvalid) as caught:
        site.compiled()
    *listed, last = str(caught.value).splitlines()
    assert [line.split(":")[1] for line in listed] == [str(line) for line in range(3, 23)]
    assert last == "and 10 more"


KNOWN = Known(
    {"partition": frozenset({"gpu", "gpu-big", "cpu"}), "node": frozenset({"n1", "n2"})},
    {"user": lambda name: name == "alice", "group": lambda name: name == "team"},
)
CI = "  - {name: ci, match: {partition: c*, user: alice}, scope: site, publish: {users: [svc_ci]}}\n"
PUBLISHER = f"rules:\n{CI}"
WARNED = [
    ("rules:\n  - {name: a, profiles: [numba], env: {NUMBA_CACHE_DIR: /n}}", "4:57", "profile numba finds its cache"),
    ("rules:\n  - {name: a, profiles: [torch-extensions]}", "4:26", "needs a constant path"),
    ("rules:\n  - {name: a, scope: site}", "4:22", "no rule publishes into scope site"),
    # Names that nothing on this site has.
    ("rules:\n  - {name: a, match: {partition: gpus}}", "4:34", "no partition 'gpus'"),
    ("rules:\n  - {name: a, match: {partition: [gpu, x*]}}", "4:40", "allowed: cpu, gpu, gpu-big"),
    ("rules:\n  - {name: a, match: {node: m1}}", "4:29", "no node 'm1'"),
    ("rules:\n  - {name: a, match: {user: bob}}", "4:29", "the rule can never match"),
    ("rules:\n  - {name: a, match: {group: teams}}", "4:30", "no group 'teams'"),
    # Regular expressions; the last ones have no simple counterpart.
    ("rules:\n  - {name: a, match: {user: [alice, al.*]}}", "4:37", "write 'al*'"),
    ("rules:\n  - {name: a, match: {user: '^al.+$'}}", "4:29", "write 'al*'"),
    ("rules:\n  - {name: a, match: {user: '(alice|a*)'}}", "4:29", "patterns have * only"),
    ("rules:\n  - {name: a, match: {user: 'a\\d*'}}", "4:29", "patterns have * only"),
    # A later rule whose scope counts for all jobs of a rule that publishes.
    (f"{PUBLISHER}  - {{name: z, scope: user}}", "5:22", "revokes the publish of rule ci"),
    (f"{PUBLISHER}  - {{name: z, match: {{partition: '*', user: a*}}, scope: user}}", "5:57", "revokes"),
]


def warned(text: str, known: Known = KNOWN) -> list[str]:
    """Return the warnings of a policy that hooks take, as LINE:COLUMN: PROBLEM."""
    document = Document([("p", MINIMAL + text)])
    problems = map(document.problem, warnings(load.checked(document, find_user), document.data, known))
    return [f"{problem.line}:{problem.column}: {problem.problem}" for problem in problems]


@pytest.mark.parametrize(("text", "place", "word"), WARNED)
def test_what_is_probably_a_mistake_is_warned_of(text: str, place: str, word: str) -> None:
    (problem,) = (problem for problem in warned(text) if word in problem)
    assert problem.startswith(f"{place}: ")


@pytest.mark.parametrize(
    "text",
    [
        "rules: [{name: a, match: {partition: [gpu*, cpu], node: 'n[1-12]', user: [alice, b*], group: team}}]",
        "maintenance: {keep: 1d}\nrules: [{name: a}]",
        f"{PUBLISHER}  - {{name: z, scope: site}}",
        f"{PUBLISHER}  - {{name: z, profiles: [numba]}}",
        f"{PUBLISHER}  - {{name: z, scope: user, match: {{partition: gpu}}}}",
        f"{PUBLISHER}  - {{name: z, scope: user, match: {{group: team}}}}",
        f"rules:\n  - {{name: z, scope: user}}\n{CI}",
    ],
)
def test_what_is_none_is_not(text: str) -> None:
    assert warned(text) == []


def test_what_is_not_known_of_a_site_is_not_judged() -> None:
    assert warned("rules: [{name: a, match: {partition: p, node: m, user: b, group: g, qos: q}}]", Known()) == []
