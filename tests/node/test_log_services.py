"""The recipes of packaging/logging, with the real programs: logrotate, and rsyslog on a node and on a log host."""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from tests.lib.audit_lines import finished
from tests.lib.config import free_ports
from tests.lib.processes import wait_until
from tests.lib.requirements import unavailable
from warmstart.audit import syslog
from warmstart.audit.line import LONGEST
from warmstart.audit.query import AuditLog, LineFilter

RECIPES = Path(__file__).parents[2] / "packaging/logging"
ALL = LineFilter()


def need(program: str) -> str:
    return shutil.which(program, path="/usr/sbin:/usr/bin") or unavailable(f"{program} is not installed")


def test_the_log_is_rotated_and_nothing_is_lost(tmp_path: Path) -> None:
    """Two rotations: the new log is root's, the older file is packed, and all events are read in order."""
    log, conf = tmp_path / "log/audit.jsonl", tmp_path / "logrotate.conf"
    text = (RECIPES / "logrotate.conf").read_text()
    conf.write_text(text.replace("/var/log/warmstart/audit.jsonl", str(log)))
    for job in range(3):
        finished(log, image=f"of {job}")
        if job < 2:
            subprocess.run([need("logrotate"), "-f", "-s", str(tmp_path / "state"), str(conf)], check=True)
            assert (log.stat().st_mode & 0o7777, log.stat().st_size) == (0o640, 0)
    assert sorted(path.name for path in log.parent.iterdir()) == ["audit.jsonl", "audit.jsonl.1", "audit.jsonl.2.gz"]
    found = [line["images"] for line in AuditLog([str(log)]).lines(LineFilter(event="hook.finished"))]
    assert found == [[{"how": "imported", "image": f"of {job}"}] for job in range(3)]


@contextmanager
def rsyslog(directory: Path, text: str) -> Iterator[None]:
    """Run rsyslogd with a configuration for a `with` block."""
    directory.mkdir()
    conf = directory / "rsyslog.conf"
    conf.write_text(f'global(workDirectory="{directory}")\n{text}')
    command = [need("rsyslogd"), "-n", "-f", str(conf), "-i", str(directory / "pid")]
    with open(directory / "messages", "wb") as messages, subprocess.Popen(command, stderr=messages) as daemon:
        try:
            yield
        finally:
            daemon.terminate()


def test_all_nodes_lines_arrive_on_the_log_host(tmp_path: Path) -> None:
    """The recipes as they are, but for host, port and paths; long lines are whole."""
    log, port, nodes = tmp_path / "audit.jsonl", str(free_ports(1)[0]), tmp_path / "nodes"
    changes = {
        "/var/log/warmstart/audit.jsonl": str(log),
        "/var/log/warmstart/nodes": str(nodes),
        "loghost.example.com": "127.0.0.1",
        "10514": port,
    }
    recipes = [(RECIPES / f"rsyslog-{role}.conf").read_text() for role in ("host", "node")]
    for old, new in changes.items():
        recipes = [text.replace(old, new) for text in recipes]
    finished(log, names=["x" * 152] * 50)
    assert max(map(len, log.read_bytes().splitlines())) > LONGEST - 150
    with rsyslog(tmp_path / "host", recipes[0]), ExitStack() as stack:
        # A host that is away is tried again after half a minute.
        until(lambda: _listens(socket.AF_INET, ("127.0.0.1", int(port))))
        stack.enter_context(rsyslog(tmp_path / "node", recipes[1]))
        until(lambda: nodes.is_dir() and len(list(AuditLog([str(nodes)]).lines(ALL))) == 2)
        finished(log)
        until(lambda: len(list(AuditLog([str(nodes)]).lines(ALL))) == 4)
    assert list(AuditLog([str(nodes)]).lines(ALL)) == list(AuditLog([str(log)]).lines(ALL))


def test_rsyslog_takes_the_lines_of_dev_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With `audit.syslog` the message is the line, and the program's name is warmstart."""
    log, arrived = tmp_path / "audit.jsonl", tmp_path / "arrived"
    monkeypatch.setattr(syslog, "SOCKET", str(tmp_path / "dev-log"))
    text = (
        f'module(load="imuxsock" sysSock.name="{tmp_path}/dev-log")\n'
        'template(name="t" type="string" string="%programname% %syslogseverity-text%%msg%\\n")\n'
        f'*.* action(type="omfile" file="{arrived}" template="t")\n'
    )
    with rsyslog(tmp_path / "rsyslog", text):
        until(lambda: _listens(socket.AF_UNIX, str(tmp_path / "dev-log")))
        finished(log, syslog=True)
        until(lambda: arrived.exists() and arrived.read_text().count("\n") == 2)
    lines = [line.partition(" {") for line in arrived.read_text().splitlines()]
    assert [head for head, *_ in lines] == ["warmstart info"] * 2
    sent = [json.loads("{" + rest) for *_, rest in lines]
    assert sent == list(AuditLog([str(log)]).lines(ALL))


def until(done: Callable[[], bool]) -> None:
    wait_until("rsyslog", done, 30)


def _listens(family: socket.AddressFamily, address: str | tuple[str, int]) -> bool:
    kind = socket.SOCK_STREAM if family == socket.AF_INET else socket.SOCK_DGRAM
    with socket.socket(family, kind) as client:
        return client.connect_ex(address) == 0
