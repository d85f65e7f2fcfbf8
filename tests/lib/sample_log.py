"""An audit log as a cluster of 24 nodes writes it in a week, the same each time: for reports and metrics."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path

from warmstart.audit.line import Line, shaped, timestamp

START = 1_769_990_400.0  # 2026-02-02, a Monday, 00:00 UTC
END = START + 8 * 86400.0
DAY = 86400.0
PROFILES = ("inductor", "triton", "numba", "vllm", "flashinfer")
USERS = ("alice", "bob", "carol", "dave", "erin", "frank", "grace", "heidi", "ivan", "judy")
SIZES = {  # MB, by image
    "registry.example.com/base/pytorch:2.9": 9_400,
    "registry.example.com/base/jax:0.10": 6_100,
    "registry.example.com/team-nlp/train:14": 11_800,
    "registry.example.com/team-nlp/serve:7": 13_200,
    "registry.example.com/vision/segment:3": 4_300,
    "registry.example.com/base/cuda:13.1": 3_100,
}
IMAGES = tuple(SIZES)
FACTS = {"image": "sha256:ab", "cpu": "x86_64-1f2e3d4c5b6a7988", "gpu": "NVIDIA-H100", "driver": "580.65"}
LEFT_OUT = ("bundles-left-out", "store-failed", "bundles-refused")
REFUSED = {
    "degree": "refused",
    "step": "prolog",
    "kind": "user",
    "code": "image-refused",
    "reason": "registry evil.example.org is not one that this cluster allows",
    "hint": "use an image from an allowed registry",
}


class _Sample:
    def __init__(self, first: int) -> None:
        self._random = random.Random(first)
        self._known: set[str] = set()
        self._warm: set[tuple[str, str]] = set()

    def job(self, job: int, at: float) -> Iterator[Line]:
        """Yield what the hooks of a job write that starts then."""
        pick = self._random
        user, image = pick.choice(USERS), IMAGES[min(int(pick.expovariate(0.6)), len(IMAGES) - 1)]
        profiles = sorted(set(pick.choices(PROFILES, k=2)))
        about: Line = {"cluster": "example", "node": f"gpu{pick.randrange(24):02}", "job_id": job}
        about |= {"uid": 2000 + USERS.index(user), "user": user}
        plan: Line = {
            "head": True,
            "asked": {"images": [image]},
            "rules": ["everyone"],
            "granted": {"profiles": profiles},
        }
        if job % 211 == 0:
            yield from _hook("prolog", at, 9.5, about, outcome="refused", failures=[REFUSED], **plan)
            return
        is_missing = image not in self._known or pick.random() < 0.004
        self._known.add(image)
        waits = is_missing or pick.random() < 0.01
        waited = SIZES[image] * pick.uniform(17, 23) * (1.0 if is_missing else pick.random()) if waits else 0.0
        got: Line = {"image": image, "digest": f"sha256:{IMAGES.index(image):064x}", "bytes": SIZES[image] * 1_000_000}
        if is_missing:
            made: Line = {**got, "duration_ms": round(waited, 3), "hook": "import", "run_id": f"i{job:07x}"}
            yield {**about, **made, "ts": timestamp(at + waited / 1000), "event": "image.imported"}
        took = waited + pick.uniform(2, 9)
        used = {**got, "how": "waited" if waits else "reused", "ms": round(took, 3), "waited_ms": round(waited)}
        seeding = pick.uniform(5, 60)
        caches = {profile: self._began(user, profile) for profile in profiles}
        result: Line = {"images": [used], "steps": {"image": round(took + 1, 3), "seed": seeding}, "facts": FACTS}
        took += 20 + pick.expovariate(1 / 30)
        yield from _hook("prolog", at, took, about, outcome="ok", **plan, **result, caches=caches)
        ends = {profile: self._ended(user, profile) for profile in profiles}
        took = 40 + pick.expovariate(1 / 200)
        yield from _hook("epilog", at + 3600, took, about, outcome="ok", steps={"harvest": 0.8 * took}, caches=ends)

    def _began(self, user: str, profile: str) -> Line:
        pick, was_there = self._random, (user, profile) in self._warm
        if not was_there or pick.random() > 0.97:
            return {"warm": False, "cold": pick.choice(LEFT_OUT) if was_there else "nothing-published"}
        found: Line = {"warm": True, "way": "overlay", "scopes": [f"user-{user}"], "bundle_ids": ["b1", "b2"]}
        return found | {"entries": pick.randrange(3, 400), "bundles": 2, "fetched_bytes": 0, "ms": pick.uniform(3, 30)}

    def _ended(self, user: str, profile: str) -> Line:
        pick, was_there = self._random, (user, profile) in self._warm
        self._warm.add((user, profile))
        new = pick.randrange(5, 300) if not was_there or pick.random() < 0.08 else 0
        use = "built" if new else pick.choice(["hit", "hit", "unknown", "untouched"])
        found: Line = {"entries": new, "use": use, "ms": 90.5}
        if new:
            found |= {"bundle": "b", "size": new * 30_000}
        if pick.random() < 0.01:
            found["rejected"] = {"pickle-malformed": pick.randrange(1, 5)}
        return found


def _hook(name: str, at: float, took: float, about: Line, **result: object) -> Iterator[Line]:
    line: Line = {
        "hook": name,
        "run_id": f"{name[0]}{about['job_id']:07x}",
        **about,
        "partition": "gpu",
        "account": "a",
    }
    yield {**line, "ts": timestamp(at), "event": "hook.started"}
    last = {"ts": timestamp(at + took / 1000), "event": "hook.finished", "status": 0, "duration_ms": round(took, 3)}
    yield {**line, **last, **result}


def lines(jobs: int, days: float = 7, first: int = 1000) -> Iterator[Line]:
    """Yield the lines of so many jobs, four for each; `first` is the first job's id."""
    sample = _Sample(first)
    for number in range(jobs):
        at = START + DAY * days * (number / jobs) ** 0.8  # more jobs each day
        yield from map(shaped, sample.job(first + number, at))


def write(path: Path, jobs: int, days: float = 7, first: int = 1000) -> int:
    """Write them as a log; return the number of lines."""
    with path.open("w") as file:
        return sum(
            bool(file.write(json.dumps(line, separators=(",", ":")) + "\n")) for line in lines(jobs, days, first)
        )
