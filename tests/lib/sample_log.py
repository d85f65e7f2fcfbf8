"""An audit log as a cluster of 24 nodes writes it in a week, the same each time: for reports and metrics."""

from __future__ import annotations

import json
import random
from collections.abc import Generator, Iterator
from pathlib import Path

from warmstart.audit.line import Line, shaped, timestamp

START = 1_769_990_400.0  # 2026-02-02, a Monday, 00:00 UTC
DAY = 86400.0
PROFILES = ("inductor", "triton", "numba", "vllm", "flashinfer")
USERS = ("alice", "bob", "carol", "dave", "erin", "frank", "grace", "heidi", "ivan", "judy")
IMAGES = tuple(f"registry.example.com/{name}" for name in (
    "base/pytorch:2.9", "base/jax:0.10", "team-nlp/train:14", "team-nlp/serve:7", "vision/segment:3", "base/cuda:13.1",
))  # fmt: skip
SIZES = (9_400, 6_100, 11_800, 13_200, 4_300, 3_100)  # MB


class _Sample:
    def __init__(self, jobs: int, days: float, first: int) -> None:
        self._random = random.Random(first)
        self._first = first
        self._jobs, self._days = jobs, days
        self._known: set[str] = set()
        self._warm: set[tuple[str, str]] = set()

    def lines(self) -> Iterator[Line]:
        for number in range(self._jobs):
            at = START + DAY * self._days * (number / self._jobs) ** 0.8  # more jobs each day
            for line in self._job(self._first + number, at):
                yield shaped(line)

    def _job(self, job: int, at: float) -> Iterator[Line]:
        pick = self._random
        user, node = pick.choice(USERS), f"gpu{pick.randrange(24):02}"
        run: Line = {"hook": "prolog", "run_id": f"{job:08x}", "cluster": "example", "node": node, "job_id": job}
        run |= {"uid": 2000 + USERS.index(user), "user": user}
        image = min(int(pick.expovariate(0.6)), len(IMAGES) - 1)
        profiles = sorted(set(pick.choices(PROFILES, k=2)))
        took = 20 + pick.expovariate(1 / 30)  # ms
        yield {**run, "ts": timestamp(at), "event": "hook.started", "partition": "gpu", "account": "research"}
        planned = {
            "asked": {"images": [IMAGES[image]]},
            "rules": ["everyone", "gpu"],
            "profiles": profiles,
            "head": True,
        }
        yield {**run, "ts": timestamp(at), "event": "job.planned", **planned}
        if job % 211 == 0:
            error = {
                "kind": "user",
                "code": "image-refused",
                "reason": "image evil.example.org/app:1 is refused: registry "
                "evil.example.org is not one that this cluster allows",
                "hint": "use an image from an allowed registry",
            }
            yield {**run, "ts": timestamp(at + 1), "event": "job.refused", "error": error}
            yield {
                **run,
                "ts": timestamp(at + 1),
                "event": "hook.finished",
                "outcome": "failed",
                "status": 0,
                "duration_ms": 9.5,
            }
            return
        took += yield from self._image(run, at, image)
        yield from self._seed(run, at, user, profiles)
        yield {**run, "ts": timestamp(at + took / 1000), "event": "hook.finished", "outcome": "ok", "status": 0,
               "duration_ms": round(took, 3)}  # fmt: skip
        yield from self._epilog(
            {**run, "hook": "epilog", "run_id": f"{job + (1 << 30):08x}"}, at + 3600, user, profiles
        )

    def _image(self, run: Line, at: float, image: int) -> Generator[Line, None, float]:
        pick, name = self._random, IMAGES[image]
        got: Line = {
            "image": name,
            "digest": f"sha256:{image:064x}",
            "path": f"/shared/warmstart/images/{image:064x}.sqsh",
        }
        got |= {"bytes": SIZES[image] * 1_000_000, "step": "image"}
        how, took, waited = "image.reused", pick.uniform(2, 9), 0.0
        if is_missing := name not in self._known or pick.random() < 0.004:
            self._known.add(name)
        if is_missing or pick.random() < 0.01:
            how, waited = "image.waited", SIZES[image] * pick.uniform(17, 23) * (1.0 if is_missing else pick.random())
            took = waited + 5
        if is_missing:
            yield from self._import({**run, "hook": "import", "run_id": f"{run['job_id']}i"}, got, at, waited)
        ended = timestamp(at + took / 1000)
        yield {**run, **got, "ts": ended, "event": how, "waited_ms": round(waited), "duration_ms": round(took, 3)}
        yield {
            **run,
            "ts": ended,
            "event": "step.finished",
            "step": "image",
            "duration_ms": round(took + 1, 3),
            "images": 1,
        }
        return took

    def _import(self, run: Line, got: Line, at: float, took: float) -> Iterator[Line]:
        ended = timestamp(at + took / 1000)
        yield {**run, "ts": timestamp(at), "event": "hook.started"}
        yield {**run, **got, "ts": ended, "event": "image.imported", "waited_ms": 0, "duration_ms": round(took, 3)}
        yield {**run, "ts": ended, "event": "hook.finished", "outcome": "ok", "duration_ms": round(took + 9, 3)}

    def _seed(self, run: Line, at: float, user: str, profiles: list[str]) -> Iterator[Line]:
        pick = self._random
        warm, cold = [], {}
        for profile in profiles:
            if (user, profile) in self._warm and pick.random() < 0.97:
                warm.append(profile)
                yield {**run, "ts": timestamp(at), "event": "cache.seeded", "step": "seed",
                       "duration_ms": pick.uniform(3, 30), "profile": profile, "namespace": "1f", "way": "overlay",
                       "mapped": True, "entries": pick.randrange(3, 400), "bundles": 2,
                       "scopes": [f"user-{run['uid']}-{user}"], "fetched_bytes": 0}  # fmt: skip
            else:
                reasons = ["bundles-left-out", "store-failed", "bundles-refused"]
                cold[profile] = pick.choice(reasons) if (user, profile) in self._warm else "nothing-published"
        facts = {"image": "sha256:ab", "cpu": "x86_64-1f2e3d4c5b6a7988", "gpu": "NVIDIA-H100", "driver": "580.65"}
        yield {**run, "ts": timestamp(at), "event": "step.finished", "step": "seed", "outcome": "changed",
               "duration_ms": pick.uniform(5, 60), "warm": warm, "cold": cold, "facts": facts}  # fmt: skip

    def _epilog(self, run: Line, at: float, user: str, profiles: list[str]) -> Iterator[Line]:
        pick = self._random
        yield {**run, "ts": timestamp(at), "event": "hook.started", "partition": "gpu", "account": "research"}
        for profile in profiles:
            new = pick.randrange(5, 300) if (user, profile) not in self._warm or pick.random() < 0.08 else 0
            seeded = 40 if (user, profile) in self._warm else 0
            use = "built" if new else pick.choice(["hit", "hit", "unknown", "untouched"])
            self._warm.add((user, profile))
            size = new * 60_000
            yield {**run, "ts": timestamp(at), "event": "cache.harvested", "step": "harvest",
                   "duration_ms": pick.uniform(5, 900), "profile": profile, "namespace": "1f",
                   "scope": f"user-{run['uid']}-{user}",
                   "bundle": None, "entries": new, "bytes": size, "changed": 0, "retired": 0, "known": 40,
                   "seeded": seeded, "use": use, "akin": 0,
                   "ignored": {}, "ignored_examples": [], "truncated": ""}  # fmt: skip
            if new:
                yield {**run, "ts": timestamp(at), "event": "bundle.published", "step": "harvest", "profile": profile,
                       "namespace": "1f2e3d4c", "bundle": "b", "sha256": "cd", "size": size // 2, "indexed": True,
                       "superseding": 0}  # fmt: skip
            if pick.random() < 0.01:
                yield {**run, "ts": timestamp(at), "event": "entry.rejected", "step": "harvest", "profile": profile,
                       "reasons": {"pickle-truncated": pick.randrange(1, 5)}, "examples": []}  # fmt: skip
        yield {**run, "ts": timestamp(at), "event": "step.finished", "step": "harvest", "duration_ms": 400.0}
        yield {**run, "ts": timestamp(at), "event": "hook.finished", "outcome": "ok", "status": 0,
               "duration_ms": round(40 + pick.expovariate(1 / 200), 3)}  # fmt: skip


def lines(jobs: int, days: float = 7, first: int = 1000) -> Iterator[Line]:
    """Yield the events of so many jobs, about eleven for each; `first` is the first job's id."""
    yield from _Sample(jobs, days, first).lines()


def write(path: Path, jobs: int, days: float = 7, first: int = 1000) -> int:
    """Write them as a log; return the number of lines."""
    count = 0
    with path.open("w") as file:
        for line in lines(jobs, days, first):
            file.write(json.dumps(line, separators=(",", ":")) + "\n")
            count += 1
    return count
