"""The policy in force while admins edit it: what hooks keep, and what people see of it."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

import pytest

from tests.lib.policy_site import Site, find_user
from warmstart.errors import WarmstartError
from warmstart.host import files
from warmstart.paths import Installation
from warmstart.policy import keys, load
from warmstart.policy.current import current_policy
from warmstart.policy.document import PolicyInvalid
from warmstart.policy.keys import Images, Match, Policy, Rule

GOOD = "version: 1\npaths: {store: /shared/warmstart}\nsite_label: one\n"
RICH = f"""\
{GOOD}images:
  registries: [reg.io]
  credentials: {{file: /etc/c, repositories: [{{name: team, repository: reg.io/team/*, match: {{user: [a*, b]}}}}]}}
rules:
  - {{name: a, match: {{partition: "gpu*"}}, profiles: [numba], env: {{A: "1"}}, override: [A], images: [docker://reg.io/a]}}
  - {{name: b, match: {{partition: ci}}, scope: site, publish: {{users: [svc_ci]}}}}
"""
BROKEN = "version: 1\npaths: {store: /shared/warmstart}\nsite_lable: two\n"


def kept(installation: Installation) -> tuple[Policy, WarmstartError | None]:
    """Return the policy in force, and what is wrong with a newer one, as the next hook does; the result is kept."""
    policy, _, problem = current_policy(installation, keep=True)
    return policy, problem


@pytest.fixture
def installation(tmp_path: Path) -> Installation:
    return Installation(str(tmp_path))


@pytest.fixture
def site(tmp_path: Path, installation: Installation) -> Site:
    (tmp_path / "etc").mkdir(mode=0o755)
    site = Site(Path(installation.etc))
    site.write(GOOD)
    return site


@pytest.fixture(autouse=True)
def compilations(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Give the node its accounts, and count what is compiled."""
    made: list[str] = []
    original = load.compile_policy

    def counted(policy: str) -> Policy:
        made.append(policy)
        return original(policy, find_user)

    monkeypatch.setattr(load, "compile_policy", counted)
    return made


def test_the_first_hook_compiles_and_the_next_one_reads(
    installation: Installation, site: Site, compilations: list[str]
) -> None:
    first, error = kept(installation)
    assert (first.site_label, error) == ("one", None)
    assert kept(installation) == (first, None)
    assert compilations == [str(site.policy)]
    status = os.stat(installation.compiled_policy)
    assert stat.S_IMODE(status.st_mode) == 0o644
    assert os.listdir(installation.var) == ["policy.json"]


def test_a_policy_is_read_as_it_was_compiled(installation: Installation, site: Site) -> None:
    site.write(RICH)
    written, read = kept(installation)[0], kept(installation)[0]
    assert read == written
    assert {type(value) for value in (read.rules[0], read.rules[0].match, read.images)} == {Rule, Match, Images}


@pytest.mark.parametrize("secret", [".", "policy.yaml", "conf.d", "conf.d/10.yaml"])
def test_what_is_kept_from_users_stays_so(installation: Installation, site: Site, secret: str) -> None:
    site.add("10.yaml", "rules: [{name: added}]")
    kept(installation)
    os.chmod(site.etc / secret, 0o600 if secret.endswith("yaml") else 0o700)
    os.utime(site.policy)
    kept(installation)
    assert stat.S_IMODE(os.stat(installation.compiled_policy).st_mode) == 0o600


def test_an_edit_is_in_force_at_once(installation: Installation, site: Site) -> None:
    kept(installation)
    site.write(GOOD.replace("one", "second"))
    assert kept(installation)[0].site_label == "second"
    site.add("a.yaml", "rules: [{name: added}]\n")
    assert [rule.name for rule in kept(installation)[0].rules] == ["added"]
    (site.etc / "conf.d/a.yaml").unlink()
    assert kept(installation)[0].rules == ()


def test_a_broken_edit_leaves_the_last_good_policy_and_says_so(installation: Installation, site: Site) -> None:
    kept(installation)
    site.write(BROKEN)
    for _ in range(3):
        policy, error = kept(installation)
        assert policy.site_label == "one"
        assert isinstance(error, PolicyInvalid)
        assert str(error) == f"{site.policy}:3:1: site_lable: unknown key; did you mean site_label?"
        assert error.fields["line"] == 3
    site.write(GOOD.replace("one", "mended"))
    assert kept(installation)[1] is None
    assert kept(installation)[0].site_label == "mended"


def test_a_policy_that_goes_away_leaves_the_last_good_one(installation: Installation, site: Site) -> None:
    """Removing the file does not switch warmstart off; the file `off` does."""
    kept(installation)
    site.policy.unlink()
    policy, error = kept(installation)
    assert policy.site_label == "one"
    assert isinstance(error, load.PolicyUnreadable)


def test_without_any_good_policy_the_error_is_raised(installation: Installation, site: Site) -> None:
    site.write(BROKEN)
    with pytest.raises(PolicyInvalid):
        kept(installation)


@pytest.mark.parametrize(
    "damage",
    [
        lambda path: path.write_text(path.read_text()[:-9]),
        lambda path: path.write_text("[]"),
        lambda path: path.write_text(path.read_text().replace(keys.MADE_BY, "1 warmstart-0.0.1 python-3.9")),
        lambda path: path.write_text(path.read_text().replace('"Images"', '"Pictures"')),
        lambda path: path.write_text(path.read_text().replace("warmstart-import", "\\ud8")),
        lambda path: path.chmod(0o666),
        lambda path: path.unlink(),
        lambda path: path.rename(path.with_name("x")) and path.symlink_to("x"),
    ],
)  # fmt: skip
def test_a_compiled_form_that_is_not_ours_is_made_again(
    installation: Installation, site: Site, compilations: list[str], damage: object
) -> None:
    policy, _ = kept(installation)
    assert callable(damage)
    damage(Path(installation.compiled_policy))
    assert keys.read(installation.compiled_policy) is None
    assert kept(installation) == (policy, None)
    assert len(compilations) == 2
    assert keys.read(installation.compiled_policy) == policy


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EROFS, errno.EACCES])
def test_a_full_disk_costs_time_only(
    installation: Installation, site: Site, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    def fail(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(files, "replace_file", fail)
    policy, error = kept(installation)
    assert (policy.site_label, error) == ("one", None)
    site.write(BROKEN)
    with pytest.raises(PolicyInvalid):
        kept(installation)


def test_an_edit_during_the_compilation_is_seen_by_the_next_hook(
    installation: Installation, site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The stamps are taken before the files are read, so a form that is too old never looks current."""
    original = load.texts

    def edited(policy: str) -> list[tuple[str, str]]:
        texts = original(policy)
        monkeypatch.setattr(load, "texts", original)
        site.write(GOOD.replace("one", "later"))
        return texts

    monkeypatch.setattr(load, "texts", edited)
    assert kept(installation)[0].site_label == "one"
    assert kept(installation)[0].site_label == "later"


def test_a_command_that_keeps_nothing_shows_what_the_next_hook_will_use(
    installation: Installation, site: Site, compilations: list[str]
) -> None:
    kept(installation)
    found = current_policy(installation)
    assert (found.policy.site_label, found.problem) == ("one", None)
    assert (found.origin, len(compilations)) == (installation.compiled_policy, 1)
    before = Path(installation.compiled_policy).read_bytes()
    site.write(GOOD.replace("one", "edited"))
    found = current_policy(installation)
    assert (found.policy.site_label, found.problem) == ("edited", None)
    assert found.origin == installation.policy
    site.write(BROKEN)
    found = current_policy(installation)
    assert (found.policy.site_label, found.origin) == ("one", installation.compiled_policy)
    assert isinstance(found.problem, PolicyInvalid)
    assert Path(installation.compiled_policy).read_bytes() == before
    os.unlink(installation.compiled_policy)
    with pytest.raises(PolicyInvalid):
        current_policy(installation)


@pytest.mark.parametrize("damage", [b"{", b"{}", b'{"made_by": "0"}'])
def test_who_may_not_read_the_compiled_form_compiles_for_himself(
    installation: Installation, site: Site, damage: bytes
) -> None:
    """That is no change of the policy; neither is it where the form is of another version."""
    kept(installation)
    Path(installation.compiled_policy).write_bytes(damage)
    found = current_policy(installation)
    assert (found.policy.site_label, found.problem) == ("one", None)
