"""The questions of the runbook, of the page for users, and the lines of jq: each is answered on a node's own log."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.lib.command_line import POLICY
from tests.lib.node import Node, OsAs
from tests.lib.numba_entries import numba_entries, write_as
from tests.lib.runs import a_job
from warmstart import session
from warmstart.cli import own

ROOT = Path(__file__).parents[3]
ADMINS = {  # question → what its answer has
    "warmstart explain 4711": "1 new entry published",
    "warmstart audit --outcome refused --since 7d": "the job asks for the profile",
    "warmstart audit --node n17 --outcome failed --since 1d": "no event matches",
    "warmstart report --since 7d": "ws-alice",
    "warmstart plan --user alice --partition gpu": "everyone",
    "warmstart cache list --user alice": "numba",
    "warmstart images list": "",
    "warmstart profile try /tmp/mytool-cache --profile numba": "1 entry",
    "warmstart policy check": "",
    "warmstart doctor": "",
}
USERS = {
    "warmstart explain 4711": "cold: nothing is published",
    "warmstart images list": "",
    'warmstart plan --comment "warmstart: profiles=numba"': "numba",
    "warmstart profile try /tmp/mytool-cache --profile numba": "1 entry",
}


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    """Give a node on which one job built an entry, another one was refused, and a third one began with the entry."""
    with pytest.MonkeyPatch.context() as patch:
        node, job = Node(tmp_path_factory.mktemp("node"), as_me=patch), a_job(uid=os.getuid(), gid=os.getgid())
        assert node.run("prolog", job).status == 0
        node.work(job, numba_entries(1))
        write_as(job.uid, job.gid, node.base / "cache", numba_entries(1))
        assert node.run("epilog", job).status == 0
        refused = job._replace(id=8, comment="warmstart: profiles=numbers")
        assert node.run("prolog", refused).status == node.run("epilog", refused).status == 0
        assert node.run("prolog", job._replace(id=9)).status == 0
        Path(node.installation.policy).write_text(POLICY)
        node.write(node.policy)
        yield node


def questions(page: str) -> list[str]:
    """Return the commands in the page's table of questions."""
    return re.findall(r"^\| [^|]*\? \| `(warmstart [^`]*)` \|$", (ROOT / "docs" / page).read_text(), re.MULTILINE)


def answered(node: Node, command: str) -> str:
    """Return what a command of a page prints for this node and its job."""
    user = "nobody" if "plan" in command else "ws-alice"  # an account, or who ran the job
    own_words = {"4711": "7", "n17": node.name, "alice": user, "/tmp/mytool-cache": f"{node.base}/cache"}
    result = node.command(*(own_words.get(word, word) for word in shlex.split(command)[1:]))
    assert (result.exit_code in (0, 1), "Usage" in result.output) == (command != "warmstart doctor", False)
    return result.output


@pytest.fixture
def user(ran: Node, monkeypatch: pytest.MonkeyPatch) -> Node:
    """Have commands run by somebody who may not read the log, nor the store."""
    monkeypatch.setattr(own, "has_only_own", lambda _: True)
    monkeypatch.setattr(session, "os", OsAs(1000))
    return ran


def test_the_pages_have_these_questions() -> None:
    assert (questions("operations/runbook.md"), questions("start/users.md")) == ([*ADMINS], [*USERS])


@pytest.mark.parametrize("command", [*ADMINS])
def test_an_administrators_question_is_one_command(ran: Node, command: str) -> None:
    assert ADMINS[command] in answered(ran, command)


@pytest.mark.parametrize("command", [*USERS])
def test_a_users_question_is_one_command(user: Node, command: str) -> None:
    assert USERS[command] in answered(user, command)


def lines_of_jq() -> dict[str, str]:
    """Return the commands of the page, each by its question."""
    page = (ROOT / "docs/reference/audit.md").read_text()
    (section,) = re.findall(r"## Ten lines of jq\n(.*?)\n## ", page, re.DOTALL)
    return dict(re.findall(r"^    # ([^\n]*)\n    (jq .*?)\n\n", section + "\n\n", re.MULTILINE | re.DOTALL))


def bundle(ran: Node) -> str:
    """Return the bundle that the job published."""
    return str(ran.published(7)[0]["bundle"])


ANSWERS: dict[str, Callable[[Node], str]] = {  # part of the question → what its answer has
    "Which jobs began on": lambda _: "\t8\tws-alice\trefused\t",
    "began cold": lambda _: "7\tnumba\tnothing-published",
    "slowest": lambda _: '["prolog",7,',
    "waited": lambda _: "",
    "this bundle": lambda _: "9",
    "did each user publish": lambda _: "ws-alice\t1\t",
    "not take": lambda _: "",
    "around": lambda _: "",
    "fails most": lambda _: "1 prolog",
    "no last line": lambda _: "",
}


@pytest.mark.parametrize("part", [*ANSWERS])
def test_a_line_of_jq_answers(ran: Node, part: str) -> None:
    assert len(lines_of_jq()) == len(ANSWERS)
    (line,) = [line for question, line in lines_of_jq().items() if part in question]
    script = f"log={ran.policy.paths.audit}\n{line.replace(' ID ', f' {bundle(ran)} ')}"
    done = subprocess.run(["bash", "-euo", "pipefail", "-c", script], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert ANSWERS[part](ran) in done.stdout
