"""`warmstart doctor` on a host with two Slurms: Debian's own, and a real 26.05 under a prefix of its own."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.lib import command_line
from tests.lib.mistakes import Site
from tests.releases.roots import root_of
from warmstart.doctor import installed, slurm

CONF = """\
ClusterName=c
SlurmctldHost=localhost
NodeName=n1
PluginDir={plugins}
AuthType=auth/munge
Prolog={prolog}
Prolog=/bin/true
PrologFlags=DeferBatch
"""
pytestmark = pytest.mark.sweep  # it needs Debian sid, which changes from day to day
CHECKS = ("slurm.prolog", "slurm.prolog-flags", "slurm.spank")


@pytest.fixture(scope="module")
def debian(capable_host: None) -> Path:
    """Return the root file system of Debian's suite that has Slurm 26.05."""
    return Path(root_of("sid"))


@pytest.fixture
def base() -> Iterator[Path]:
    """Yield a directory that is not below /tmp, where a policy names nothing."""
    path = Path(tempfile.mkdtemp(prefix="ws-two-", dir="/var/tmp"))
    path.chmod(0o755)
    yield path
    shutil.rmtree(path)


def install(debian: Path, prefix: Path) -> None:
    """Put scontrol, slurmd and the plugins of that Slurm under a prefix, as `make install` of Slurm does."""
    (loader,) = debian.glob("lib64/ld-linux*.so.2")
    (library,) = debian.glob("usr/lib/*/slurm-wlm")
    for path, program in (("bin/scontrol", "usr/bin/scontrol"), ("sbin/slurmd", "usr/sbin/slurmd-wlm")):
        (prefix / path).parent.mkdir(parents=True)
        start = f"{loader} --library-path {library.parent}:{library} {debian / program}"
        (prefix / path).write_text(f'#!/bin/sh\nexec {start} "$@"\n')
        (prefix / path).chmod(0o755)
    (prefix / "lib").mkdir()
    shutil.copytree(library, prefix / "lib/slurm", symlinks=True)
    shutil.copy(prefix / "lib/slurm/select_cons_tres.so", prefix / "lib/slurm/warmstart.so")


def examined(site: Site, *arguments: str) -> dict[str, tuple[str, str]]:
    """Return the statuses and words of the findings on Slurm by their checks."""
    findings = json.loads(command_line.run(site.installation, "doctor", "--json", *arguments).stdout)["findings"]
    return {row["check"]: (row["status"], row["found"]) for row in findings if row["check"].startswith("slurm")}


def test_the_slurm_of_the_policy_is_judged(debian: Path, base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All of its Prolog= lines count, DeferBatch implies Alloc, its plugin fits: not so for Debian's.

    Its slurm.conf is found under the prefix, without a slurmctld and without SLURM_CONF.
    """
    monkeypatch.delenv("SLURM_CONF", raising=False)
    monkeypatch.setattr(slurm, "QUERY_S", 1.0)  # there is no slurmctld
    site, prefix = Site.make(base), base / "slurm/26.05"
    install(debian, prefix)
    (base / "slurm/current").symlink_to("26.05")
    (prefix / "etc").mkdir()
    conf = prefix / "etc/slurm.conf"
    conf.write_text(CONF.format(plugins=prefix / "lib/slurm", prolog=site.libexec / "prolog"))
    line = f"optional warmstart.so workspace={base}/workspace\n"
    conf.with_name("plugstack.conf").write_text(line)

    site.edit(f"scontrol: {base}/scontrol", f"scontrol: {base}/slurm/current/bin/scontrol")
    found = examined(site)
    assert found["slurm.conf"] == ("ok", f"read {conf} of Slurm 26.05")
    assert [found[check][0] for check in CHECKS] == ["ok", "ok", "ok"], found

    without = conf.read_text().replace(f"PluginDir={prefix}/lib/slurm\n", "")
    conf.write_text(without)
    assert examined(site)["slurm.spank"] == found["slurm.spank"]  # the directory under the prefix
    (prefix / "sbin/slurmd").unlink()
    conf.write_text(f"{without}PluginDir={prefix}/lib/slurm\n")
    assert examined(site) == found  # scontrol tells the same, and needs slurm.conf for it

    site.edit(f"scontrol: {base}/slurm/current/bin/scontrol", "scontrol: /usr/bin/scontrol")
    other = examined(site, "--slurm-conf", str(conf))
    assert other["slurm.conf"] != found["slurm.conf"]
    one_line = (installed.release("/usr/bin/scontrol", "") or (0,)) < slurm.SEVERAL_LINES
    assert [other[check][0] for check in CHECKS] == ["wrong" if one_line else "ok", "wrong", "wrong"], other
    assert "built for Slurm 26.05, so Slurm" in other["slurm.spank"][1]
