"""Ten questions of administrators, and ten of users: each command, as its page has it, answers for what jobs did."""

from __future__ import annotations

import re
import shlex
import shutil
import time
from pathlib import Path
from typing import TYPE_CHECKING

from tests.cluster.accounts import ALICE, BOB
from tests.cluster.processes import wait_until
from tests.cluster.registry import Registry
from tests.cluster.site import Site

if TYPE_CHECKING:
    from collections.abc import Callable

DOCS = Path(__file__).resolve().parents[2] / "docs"
ADMINS, USERS = DOCS / "operations/runbook.md", DOCS / "start/users.md"
OF_ADMINS = re.compile(r"^    (warmstart .*?) +# (.*\?)$", re.MULTILINE)
OF_USERS = re.compile(r"^\| (.*\?) \| `(warmstart .*)` \|$", re.MULTILINE)
RULES = """\
rules:
  - name: everyone
    profiles: [numba]
    scope: site
  - name: publisher
    match: {partition: ci}
    scope: site
    publish: {users: [ws-alice]}
"""


def test_each_is_answered(site: Site, registry: Registry, fresh_image: Callable[[], str], tmp_path: Path) -> None:
    """Alice's job begins cold and publishes, bob's is seeded from it; others have an image, or fail."""
    site.write_policy(RULES, store=str(site.new_store(site.cluster.base / "store-questions")))
    image = fresh_image()
    first = site.compile_job("numba array", ALICE, "n1", "--partition=ci")
    site.finish(first)
    second = site.compile_job("numba array", BOB, "n4")
    with registry.silent():
        third = site.cluster.submit("#!/bin/sh\n", BOB, f"--comment=warmstart: image={image}", "--nodelist=n2")
        wait_until("its import", lambda: bool(site.imports()), 60)
        time.sleep(2)
    refused = site.cluster.submit("#!/bin/sh\n", BOB, "--comment=warmstart: image=evil.invalid/x:1")
    failed = site.cluster.submit("#!/bin/sh\n", BOB, f"--comment=warmstart: image={image}9", "--nodelist=n3")
    for job in (second, third, refused, failed):
        site.finish(job)
    shutil.copytree(site.jobs / "entries", tmp_path / "cache")
    here = {"4711": str(first), "10s": "1s", "team/app:1": image, "alice": ALICE, "n17": "n3",
            "/tmp/mytool-cache": str(tmp_path / "cache")}  # fmt: skip
    expected = {
        "Which jobs began cold": rf"\b{first} .*cold: numba \(nothing-published\)",
        "Why did this one": "cold: nothing is published for its facts",
        "Which jobs were refused": rf"\b{refused} .*evil.invalid",
        "Which jobs waited long": rf"\b{third} ",
        "Whose jobs begin cold": rf"{ALICE} .* nothing-published",
        "Who uses this image": rf"\b{third} +{BOB} ",
        "What did this user's": rf"numba .* {ALICE} ",
        "Who was seeded": rf"\b{second} +{BOB} .*warm: numba",
        "What would my own profile": r"[1-9][0-9]* entr",
        "What failed": rf"n3 +{failed} +\S*failed",
    }
    asked = OF_ADMINS.findall(ADMINS.read_text())
    assert len(asked) == len(expected) == 10
    for command, question in asked:
        words = [here.get(word, word) for word in shlex.split(command)[1:]]
        done = site.command(*words)
        assert (done.returncode, done.stderr) == (0, ""), (question, done.stderr)
        (pattern,) = [regex for words_, regex in expected.items() if question.startswith(words_)]
        assert re.search(pattern, done.stdout), (question, done.stdout)
        if command.startswith("warmstart jobs --seeded-from"):
            assert not re.search(rf"\b{first} ", done.stdout), done.stdout
    of_users = {
        "What became": (BOB, rf"\b{second} .*warm: numba"),
        "Why was this one": (ALICE, "cold: nothing is published for its facts"),
        "Which of my jobs began cold": (ALICE, rf"\b{first} .*cold: numba \(nothing-published\)"),
        "Which were refused": (BOB, rf"\b{refused} .*evil.invalid"),
        "Which waited long": (BOB, rf"\b{third} "),
        "Which used this image": (BOB, rf"\b{third} +{BOB} "),
        "What did my jobs": (ALICE, rf"numba .* {ALICE} "),
        "Is this image": (BOB, image.rpartition("/")[2]),
        "Is this comment right": (BOB, "numba"),
        "What would a profile": (ALICE, r"[1-9][0-9]* entr"),
    }
    here["/tmp/mytool-cache"] = str(site.jobs / "entries")
    questions = OF_USERS.findall(USERS.read_text())
    assert len(questions) == len(of_users) == 10
    for question, command in questions:
        words = [here.get(word, word) for word in shlex.split(command)[1:]]
        (user, pattern) = next(asked for words_, asked in of_users.items() if question.startswith(words_))
        done = site.elsewhere(user, *words)
        assert (done.returncode, bool(re.search(pattern, done.stdout))) == (0, True), (question, done)
