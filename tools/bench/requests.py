"""Count what hooks ask of the store, for docs/operations/filesystems.md: `python -m tools.bench.requests`. Needs root.

strace counts the system calls that name the store or use a descriptor of it. A network file system sends at most one
request for each, and fewer where its caches answer: `by name` counts those that it can hardly answer by itself.
"""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import NamedTuple

from tests.lib.bench_site import BenchSite, bench_site
from tests.lib.numba_entries import numba_entries, write_as
from tests.lib.teardown import unmount_below

RULES = """\
version: 1
paths: {{workspace: {base}/workspace, store: {base}/store, audit: {base}/audit/audit.jsonl}}
images: {{registries: [reg.example.com]}}
constant_path: enroot
rules:
  - name: everyone
    profiles: [{profiles}]
"""
PROFILES = "numba, inductor, triton, vllm"
IMAGES = '    images: ["docker://reg.example.com/team/app:1"]\n'
BY_NAME = re.compile(r"^(?:open|stat|newfstatat|statx|access|readlink|link|unlink|rename|mkdir|rmdir|getdents)")
ENTRIES = 20


class Counted(NamedTuple):
    """System calls of one hook on the store."""

    calls: int
    by_name: int
    read: int
    written: int


class Node(NamedTuple):
    """A node of the site, whose hooks run one after the other."""

    site: BenchSite
    name: str

    def hook(self, name: str, job: int) -> Counted:
        """Run a hook of a job under strace; return what it asked of the store."""
        log = self.site.base / "strace.log"
        command = self.site.hook(name)
        env = {**command.env, "SLURM_JOB_ID": str(job), "SLURMD_NODENAME": self.name}
        subprocess.run(["/usr/bin/strace", "-f", "-y", "-o", str(log), *command.argv], env=env, check=True)
        named = re.compile(rf'(?:"|<){re.escape(str(self.site.base / "store"))}[/">]')
        calls = [line.split(maxsplit=1)[1] for line in log.read_text().splitlines() if named.search(line)]
        amounts = {"read": 0, "write": 0}
        for call in calls:
            moved = re.match(r"(?:p?(read|write)(?:v|64)?)\(.* = (\d+)$", call)
            if moved:
                amounts[moved[1]] += int(moved[2])
        return Counted(len(calls), sum(bool(BY_NAME.match(call)) for call in calls), amounts["read"], amounts["write"])

    def job(self, number: int, *entries: int) -> tuple[Counted, Counted]:
        """Run a job that makes these entries; return what its prolog and its epilog asked."""
        prolog = self.hook("prolog", number)
        if entries:
            made = numba_entries(*entries)
            run = next((self.site.base / "workspace").glob(f"{number}.*"))
            write_as(
                int(self.site.job_env["SLURM_JOB_UID"]),
                int(self.site.job_env["SLURM_JOB_GID"]),
                run / "cache/numba",
                made,
            )
        return prolog, self.hook("epilog", number)


def main() -> None:
    """Run jobs on two nodes and print a row for each kind of hook."""
    with bench_site(1000) as site:
        try:
            rows = counted(site)
        finally:
            unmount_below(site.base)
    print("| hook | calls | by name | read | written |\n|---|---|---|---|---|")  # noqa: T201
    for what, row in rows.items():
        print(f"| {what} | {row.calls} | {row.by_name} | {row.read} B | {row.written} B |")  # noqa: T201


def counted(site: BenchSite) -> dict[str, Counted]:
    """Return what each kind of hook asked of the store."""
    one, two = Node(site, "n1"), Node(site, "n2")
    _policy(site, "", "    match: {partition: other}\n")
    rows = {"no rule matches: prolog": one.job(1)[0]}
    _policy(site, PROFILES, "")
    first, published = one.job(2, *range(ENTRIES))
    rows |= {"nothing is published yet, 4 profiles: prolog": first, f"{ENTRIES} new entries: epilog": published}
    rows["the first on another node, fetches a bundle: prolog"] = two.job(3)[0]
    rows["warm, 4 profiles: prolog"], rows["nothing new, 4 profiles: epilog"] = two.job(4)
    _policy(site, PROFILES, IMAGES)
    two.job(5)
    rows["warm, 4 profiles and an image by tag: prolog"] = two.job(6)[0]
    _policy(site, "", IMAGES)
    rows["warm, an image by tag: prolog"] = two.job(7)[0]
    return rows


def _policy(site: BenchSite, profiles: str, images: str) -> None:
    path = Path(site.prefix, "etc/warmstart/policy.yaml")
    path.write_text(RULES.format(base=site.base, profiles=profiles) + images)


if __name__ == "__main__":
    main()
