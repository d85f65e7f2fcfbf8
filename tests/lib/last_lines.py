"""What the last lines of a job's hooks say: a dict for each cache, image or failure."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

Found = list[dict[str, Any]]


class LastLines(ABC):
    """Whoever has a log. Each dict says in `hook` and `node` whose line it is from; job 0: every job."""

    @abstractmethod
    def lines(self, job: int = 0) -> Found:
        """Return all lines of a job."""

    def results(self, job: int = 0, hook: str = "") -> Found:
        """Return the last lines of a job's hooks, and of what was harvested for it later."""
        ends = ("hook.finished", "harvest.finished")
        return [line for line in self.lines(job) if line["event"] in ends and hook in ("", line["hook"])]

    def caches(self, job: int = 0) -> Found:
        """Return what is said of caches, each with its `profile`; another image's ends in `@` and the set's key."""
        return [
            {**_whose(line), **cache, "profile": name}
            for line in self.results(job)
            for name, cache in line.get("caches", {}).items()
        ]

    def seeded(self, job: int = 0) -> Found:
        """Return the caches that began warm."""
        return [cache for cache in self.caches(job) if cache.get("warm")]

    def harvested(self, job: int = 0) -> Found:
        """Return the caches that were harvested."""
        return [cache for cache in self.caches(job) if "warm" not in cache and "entries" in cache]

    def published(self, job: int = 0) -> Found:
        """Return the caches of which a bundle was published."""
        return [cache for cache in self.caches(job) if "warm" not in cache and "bundle" in cache]

    def images(self, job: int = 0, how: str = "") -> Found:
        """Return the images that hooks obtained, or those obtained in one way."""
        return [image for image in self.listed("images", job) if how in ("", image["how"])]

    def failures(self, job: int = 0, degree: str = "") -> Found:
        """Return the failures, or those with one outcome for the job or the node."""
        return [failure for failure in self.listed("failures", job) if degree in ("", failure.get("degree"))]

    def remarks(self, job: int = 0) -> list[str]:
        """Return the remarks, each after what it is about."""
        return [f"{remark.get('about', '')}: {remark['text']}" for remark in self.listed("remarks", job)]

    def told(self, step: str, job: int = 0) -> Found:
        """Return what a step said, of each hook that ran it."""
        return [{**_whose(line), **line["told"][step]} for line in self.results(job) if step in line.get("told", {})]

    def listed(self, part: str, job: int = 0) -> Found:
        """Return the items of a list in last lines: of what a wing has shown, for example."""
        return [{**_whose(line), **item} for line in self.results(job) for item in line.get(part, [])]


def _whose(line: dict[str, Any]) -> dict[str, Any]:
    return {name: line[name] for name in ("hook", "node", "job_id", "user", "ts") if name in line}
