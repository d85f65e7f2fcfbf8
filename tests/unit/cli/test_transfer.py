"""`warmstart cache export` and `import`: to another store and back, and what is refused on the way."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.support import packed
from tests.support.cache_files import NUMBA_BASE, numba_files
from tests.support.entry_site import EntrySite
from warmstart.store.layout import Namespace

SCOPE = "account-physics"


@pytest.fixture
def site(entry_site: EntrySite) -> EntrySite:
    """Give a store with a bundle of one real function."""
    where = Namespace(str(entry_site.store), SCOPE, "numba", "ns")
    packed.publish(entry_site.root, where, {NUMBA_BASE: numba_files()})
    return entry_site


def emptied(site: EntrySite) -> None:
    """Have another cluster's store."""
    shutil.rmtree(site.store)
    site.store.mkdir()


def test_bundles_travel(site: EntrySite) -> None:
    """There and here the same entries."""
    target = str(site.root / "export")
    assert len(site.json("cache", "export", target)) == 1
    emptied(site)
    (row,) = site.json("cache", "import", target, "--to", SCOPE)
    assert (row["scope"], row["entries"], row["rejected"], row["problem"]) == (SCOPE, 1, {}, "")
    assert site.offered(SCOPE) == [NUMBA_BASE]
    (again,) = site.json("cache", "import", target, "--to", SCOPE)
    assert (again["entries"], again["known"]) == (0, 1)
    assert len(site.events("bundle.imported")) == 1
    (told,) = site.events("cache.exported")
    assert (told["bundles"], told["target"]) == (1, target)


def test_nothing_to_export(site: EntrySite) -> None:
    """Status 1, and nothing is made."""
    target = site.root / "export"
    assert site.command("cache", "export", str(target), "--scope", "site").exit_code == 1
    assert not target.exists()


def test_into_another_scope_and_namespace(site: EntrySite) -> None:
    """Where the options say; not for bundles of several namespaces at once."""
    target = str(site.root / "export")
    where = Namespace(str(site.store), SCOPE, "numba", "other")
    packed.publish(site.root, where, {NUMBA_BASE: numba_files()})
    site.command("cache", "export", target)
    both = site.command("cache", "import", target, "--to", "site", "--to-namespace", "new")
    assert (both.exit_code, "--to-namespace" in both.stderr) == (2, True)
    one = site.command("cache", "import", target, "--namespace", "ns", "--to", "site", "--to-namespace", "new")
    assert one.exit_code == 0
    assert site.offered("site", "new") == [NUMBA_BASE]


def test_a_damaged_export_is_found_out(site: EntrySite) -> None:
    """Nothing of it is published; the store's own bundle that can't be read is left out of an export."""
    target = site.root / "export"
    site.command("cache", "export", str(target))
    (bundle,) = target.rglob("*.sqsh")
    bundle.chmod(0o600)
    bundle.write_bytes(bytes(bundle.stat().st_size))
    emptied(site)
    result = site.command("cache", "import", str(target), "--to", SCOPE)
    assert (result.exit_code, site.offered(SCOPE)) == (1, [])
    assert len(site.events("step.failed")) == 1


def test_what_is_not_valid_is_not_published(site: EntrySite) -> None:
    """It may be what its manifest says, and still be no entry of the tool."""
    emptied(site)
    where = Namespace(str(site.store), SCOPE, "numba", "ns")
    packed.publish(site.root, where, {NUMBA_BASE: {f"{NUMBA_BASE}.nbi": b"no pickle"}})
    target = str(site.root / "export")
    site.command("cache", "export", target)
    emptied(site)
    result = site.command("cache", "import", target, "--to", SCOPE)
    assert (result.exit_code, site.offered(SCOPE)) == (1, [])
    assert len(site.events("entry.rejected")) == 1


def test_a_bundle_that_can_not_be_read_is_left_out(site: EntrySite) -> None:
    """The export goes on, and status 1 says that it is not all."""
    (bundle,) = Path(site.store).rglob("*.sqsh")
    bundle.chmod(0o600)
    bundle.write_bytes(b"x")
    result = site.command("cache", "export", str(site.root / "export"))
    assert (result.exit_code, "0 bundles exported" in result.stdout) == (1, True)


def test_only_a_users_own_scope_is_clear(site: EntrySite) -> None:
    """Every other has to be named: more jobs read it."""
    target = str(site.root / "export")
    site.command("cache", "export", target)
    emptied(site)
    result = site.command("cache", "import", target)
    assert (result.exit_code, site.offered(SCOPE)) == (1, [])


def test_what_is_no_export(site: EntrySite) -> None:
    """Status 2."""
    assert site.command("cache", "import", str(site.root / "none")).exit_code == 2
    (site.root / "empty").mkdir()
    assert site.command("cache", "import", str(site.root / "empty")).exit_code == 2
