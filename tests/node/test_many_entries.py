"""A job that builds nothing costs the same with 10 and with 1,000 entries: calls, files and bytes of both its hooks.

A namespace of 50,000 costs a prolog what one of 10 costs. Of the profiles whose entries name their own path; without a
constant path they are left out.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import re
import subprocess
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.lib import rooms
from tests.lib.bench_site import UNCOUNTED, BenchSite, Command, bench_site
from tests.lib.privileges import as_user
from tests.lib.processes import wait_until
from warmstart.caches.store import bundles
from warmstart.caches.store.bundles import Draft
from warmstart.caches.store.layout import Entries, File, Namespace
from warmstart.harvest.pack import pack
from warmstart.host.deadline import after
from warmstart.host.files import closing
from warmstart.paths import Installation
from warmstart.run.state import decode

FEW, MANY, WHOLE = 10, 1000, 50_000
# Where each profile has Triton's kernels.
KERNELS = {
    "triton": "",
    "vllm": "torch_compile_cache/0123456789/rank_0_0/triton_cache/",
    "sglang": "triton/",
    "helion": "triton/0/",
}
MOST_MORE = (len(KERNELS) * 64 + 20) << 10  # bytes: the beginning of each listing
RULES = """\
site_label: {label}
constant_path: {constant}
rules:
  - name: everyone
    profiles: [{profiles}]
"""
MOVED = re.compile(r"^\d+ +(?:p?read(?:64|v)?|p?write(?:64|v)?|sendfile|copy_file_range)\(.* = (\d+)$")
OPENED = re.compile(r"^\d+ +open(?:at2?)?\(.* = \d+")
MTIME = 1_700_000_000 * 10**9


class Cost(NamedTuple):
    """What a hook did."""

    calls: int
    files: int
    size: int  # bytes that it read and wrote

    def is_like(self, other: Cost) -> bool:
        """Return whether nothing grew with the entries; how often a node looks for another's word makes a little."""
        some = MANY // 4  # one call for each entry would be four times that
        return (
            self.calls <= other.calls + some
            and self.files <= other.files + some // 10
            and (self.size <= other.size + MOST_MORE)
        )


@pytest.fixture(scope="module")
def site(install: Callable[[Path], None]) -> Iterator[BenchSite]:
    with bench_site(10, install) as made:
        yield made


@pytest.fixture(scope="module")
def second(site: BenchSite) -> Iterator[Sequence[str]]:
    own, ready = {site.base / "workspace": 0o755, Path(Installation(str(site.prefix)).view): 0o711}, site.base / "ready"
    rooms.divide(site.base, own, ["n2"])
    with subprocess.Popen(rooms.a_room("n2", own), env={"PATH": os.environ["PATH"], "READY": str(ready)}) as room:
        try:
            wait_until("the room of n2", ready.exists, 30)
            yield rooms.enter(room.pid)
        finally:
            room.kill()


@pytest.mark.report
@pytest.mark.parametrize("nodes", [1, 2])
def test_a_job_that_builds_nothing(site: BenchSite, second: Sequence[str], nodes: int) -> None:
    few, many = (cost(site, count, [second] * (nodes - 1)) for count in (FEW, MANY))
    assert {hook: (few[hook], many[hook]) for hook in few if not many[hook].is_like(few[hook])} == {}


@pytest.mark.report
def test_a_large_namespace_costs_a_prolog_no_more(site: BenchSite) -> None:
    few, whole = (cost(site, count, [])["prolog"] for count in (FEW, WHOLE))
    assert whole.is_like(few), (few, whole)


@pytest.mark.report
def test_without_a_constant_path_there_is_nothing_to_do(site: BenchSite) -> None:
    """Each job would have to put its own path into each entry. The tools stay where they are without warmstart."""
    write_policy(site, "none")
    site.hook("prolog").run()
    assert [*site.base.glob("workspace/7.*")] == []
    site.hook("epilog").run()


def write_policy(site: BenchSite, constant: str, label: str = "bare") -> None:
    site.write_policy(RULES.format(label=label, constant=constant, profiles=", ".join(KERNELS)))


def cost(site: BenchSite, count: int, others: Sequence[Sequence[str]]) -> dict[str, Cost]:
    """Publish entries, and return what the hooks of a job cost on a node that has shown them before.

    `others` are the words before the hooks of its other nodes.
    """
    label = f"of-{count}-for-{len(others)}-{len([*site.base.glob('of-*')])}"
    write_policy(site, "spank", label)
    run(site, "prolog")
    (path,) = site.prefix.glob("run/warmstart/n1/state/7/run.json")
    record = decode(str(path), path.read_bytes())
    run(site, "epilog")
    (stage := site.base / label).mkdir()
    for profile, seeded in record.own.seeded.items():
        where = Namespace(str(site.base / "store"), record.own.publish_scope, profile, seeded.namespace)
        entries = written(stage / profile, KERNELS[profile], f"{record.own.path}/{profile}", min(count, MANY))
        with closing(pack(str(stage / profile), f"{stage}/{profile}.sqsh", after(60))) as fd:
            for number in range(len(entries), count):  # no prolog looks into a bundle
                entries[f"{KERNELS[profile]}{number}"] = {
                    f"{KERNELS[profile]}{number}/k.json": File(2, "0" * 64, MTIME)
                }
            draft = Draft(record.user, record.uid, 7, entries)
            assert as_user(site.owner.uid, partial(bundles.publish, where, "test", fd, draft, 0))
    for hook in ("prolog", "epilog"):  # fetches and mounts
        run(site, hook, others, is_counted=False)
    found = {}
    for hook in ("prolog", "epilog"):
        calls = [line for line in run(site, hook, others) if not UNCOUNTED.search(line)]
        moved = sum(int(match[1]) for line in calls if (match := MOVED.search(line)))
        found[hook] = Cost(len(calls), sum(bool(OPENED.search(line)) for line in calls), moved)
        if hook == "prolog":
            given = {name: seeded.number for name, seeded in decode(str(path), path.read_bytes()).own.seeded.items()}
            assert given == dict.fromkeys(KERNELS, count)
    return found


def run(site: BenchSite, hook: str, others: Sequence[Sequence[str]] = (), *, is_counted: bool = True) -> list[str]:
    """Run a hook on the nodes of a job side by side; return the system calls of the first one's, if they are counted.

    That takes long where a bundle of many entries is fetched.
    """
    more = {"SLURM_JOB_NODELIST": "n[1-2]"} if others else {}
    on = [
        Command([*enter, *site.hook(hook).argv], {**site.job_env, **more, "SLURMD_NODENAME": f"n{number}"})
        for number, enter in enumerate([(), *others], 1)
    ]
    running = [subprocess.Popen(one.argv, env=dict(one.env), stdout=subprocess.DEVNULL) for one in on[1:]]
    calls: list[str] = []
    if is_counted:
        calls = on[0].calls(site.base / "calls")
    else:
        on[0].run()
    assert [other.wait() for other in running] == [0] * len(others)
    return calls


def written(top: Path, folder: str, shown: str, count: int) -> Entries:
    """Write kernels as Triton leaves them, which name the path at which a job sees their directory."""
    entries: Entries = {}
    for number in range(count):
        digest = hashlib.sha256(str(number).encode()).digest()
        entry = f"{folder}{base64.b32encode(digest).decode().rstrip('=')}"
        names = ("k.json", "k.cubin")
        group = {"child_paths": {name: f"{shown}/{entry}/{name}" for name in names}}
        content = {"__grp__k.json": json.dumps(group).encode(), "k.json": b"{}", "k.cubin": os.urandom(5000)}
        (top / entry).mkdir(parents=True)
        entries[entry] = {}
        for name, data in content.items():
            (top / entry / name).write_bytes(data)
            os.utime(top / entry / name, ns=(MTIME, MTIME))
            entries[entry][f"{entry}/{name}"] = File(len(data), hashlib.sha256(data).hexdigest(), MTIME)
    return entries
