"""On real Slurm: a job is seeded from a signed scope alone, and from nothing where the wing is gone."""

from __future__ import annotations

import json
import shutil
import subprocess
from typing import TYPE_CHECKING

import pytest

from tests.cluster.accounts import ALICE
from tests.cluster.site import Site
from tests.support.cache_files import triton_kernel
from tests.wings.signing.values import need_ssh_keygen

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

RULES = """\
{signing}
rules:
  - name: everyone
    profiles: [triton]
    scope: site
  - name: production
    match: {{node: n3}}
    signed_only: {signed_only}
"""

pytestmark = pytest.mark.threat(52)


@pytest.fixture
def site(installed: Site) -> Iterator[Site]:
    """Give the site with an empty store."""
    store = installed.cluster.base / "store-signed"
    shutil.rmtree(store, ignore_errors=True)
    installed.new_store(store)
    shutil.rmtree(installed.var / "signed", ignore_errors=True)  # of a store that is gone
    write(installed)
    yield installed
    installed.write_policy()


def write(site: Site, signing: str = "") -> None:
    """Write the policy, with the wing's section or without."""
    rules = RULES.format(signing=signing, signed_only="true" if signing else "false")
    site.write_policy(rules, store=str(site.cluster.base / "store-signed"))


def key_of(site: Site) -> Path:
    """Make a key, once."""
    key = site.cluster.base / "site-key"
    if not key.exists():
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", key], check=True)
    return key


def section(key: Path) -> str:
    """Return the policy's section that asks for this key's signature."""
    return f"signing: {{scopes: [site], keys: ['{key.with_suffix('.pub').read_text().strip()}']}}"


def kernel(site: Site) -> Path:
    """Return a directory with a kernel as Triton makes it."""
    top = site.cluster.base / "kernel"
    for path, content in sorted(triton_kernel("3.9").items(), key=lambda item: "__grp__" in item[0]):
        (top / path).parent.mkdir(parents=True, exist_ok=True)
        (top / path).write_bytes(content)
    return top


def job(site: Site, node: str, make: Path | None = None) -> list[str]:
    """Run a job that makes an entry, if it has none; return the entries that it found."""
    build = f'cp -r {make}/[!_]* "$TRITON_CACHE_DIR"; touch "$TRITON_CACHE_DIR"/*/__grp__*' if make else "true"
    script = f'#!/bin/sh\nls "$TRITON_CACHE_DIR"\n[ "$(ls "$TRITON_CACHE_DIR")" ] || {{ {build}; }}\n'
    ended = site.finish(site.cluster.submit(script, ALICE, f"--nodelist={node}"))
    assert ended.state == "COMPLETED", ended
    return ended.output.split()


def promoted(site: Site, key: Path) -> str:
    """Run a job that makes an entry, sign the site's scope, and promote the entry there; return its bundle."""
    assert job(site, "n1", kernel(site)) == []
    (bundle,) = json.loads(site.command("cache", "list", "--json").stdout)
    write(site, section(key))
    assert [len(job(site, node)) for node in ("n1", "n3")] == [1, 0]
    refused = site.command("cache", "promote", bundle["bundle"], "--to", "site")
    assert (refused.returncode, "only what its guard names" in refused.stderr) == (2, True)
    done = site.command("signing", "promote", bundle["bundle"], "--to", "site", "--key", str(key), "--json")
    assert done.returncode == 0, done.stderr
    assert len(job(site, "n3")) == 1
    return str(json.loads(done.stdout)["bundle"])


def test_a_job_is_seeded_from_a_signed_scope_alone(site: Site) -> None:
    """Not from its user's scope, where root on any node can publish. A block counts as ever."""
    need_ssh_keygen()
    promoted(site, key_of(site))
    assert site.command("cache", "block", "--user", ALICE, "--reason", "test").returncode == 0
    assert job(site, "n3") == []


def test_without_the_wing_a_signed_scope_is_not_read_as_an_open_one(site: Site) -> None:
    """Hooks have the policy that was compiled with it: they take nothing from there. A new one is refused."""
    need_ssh_keygen()
    bundle = promoted(site, key_of(site))
    (wing,) = (site.cluster.prefix / "lib/warmstart").glob("**/wings/signing")
    away = site.cluster.prefix / "signing-away"
    wing.rename(away)
    try:
        assert [len(job(site, node)) for node in ("n1", "n3")] == [1, 0]  # n1: of its own user's
        refused = site.command("cache", "rm", bundle)
        assert (refused.returncode, "guarded by the wing signing" in refused.stderr) == (2, True)
        checked = site.command("policy", "check")
        assert (checked.returncode, "signing: unknown key" in checked.stdout) == (1, True)
        write(site, f"site_label: other\n{section(key_of(site))}")
        assert [len(job(site, node)) for node in ("n1", "n3")] == [1, 0]  # the last good policy stays in force
    finally:
        away.rename(wing)
