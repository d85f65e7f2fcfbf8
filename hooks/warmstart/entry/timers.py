"""`timers`: what systemd's timers do on a node, in one process in the foreground. For containers.

Runs as root, for no job (docs/guides/kubernetes.md). A supervisor starts it in slurmd's own container, since another
one sees neither the mounts of jobs nor their step daemons. While it lives, pods over the same state know that its nodes
are kept (`keeper.keep`). On SIGTERM it maintains once more: runs of jobs that are over are ended, and those that wait.
Then it says what is left.

It starts the programs that systemd starts, so an upgrade counts from their next start on.
"""

from __future__ import annotations

import os
import random
import select
import signal
import subprocess
import time
from contextlib import suppress

from warmstart.audit.syslog import complain
from warmstart.harvest.live import LIVE
from warmstart.host.files import names_in
from warmstart.keeper import keep
from warmstart.paths import Installation
from warmstart.queue import Queue, waiting
from warmstart.session import NODE_INTERVAL_S

LOOK_S = 15.0
FIRST_S = 300.0  # OnBootSec= of warmstart-maintain.timer
SPREAD_S = 600.0  # its RandomizedDelaySec=
ROUND_S = 300.0  # as in warmstart-harvest.timer
LAST_S = 60.0  # for the last maintenance: docs/guides/kubernetes.md has the grace period that leaves it
STOP_S = 5.0


def main(prefix: str) -> int:
    """Work until SIGTERM. Return the exit status."""
    installation = Installation(prefix)
    maintenance = [f"{prefix}/bin/warmstart", "maintain"]
    live = [f"{installation.libexec}/background", LIVE.name]
    stopped = _on_stop()
    kept: dict[str, tuple[int, int]] = {}
    running: dict[str, subprocess.Popen[bytes]] = {}

    def begin(what: str, argv: list[str]) -> bool:
        if what in running and running[what].poll() is None:
            return False
        running[what] = subprocess.Popen(argv, stdout=subprocess.DEVNULL)
        return True

    maintain_at = time.monotonic() + FIRST_S + random.random() * SPREAD_S  # noqa: S311 - no secret
    round_at = time.monotonic() + ROUND_S
    while True:
        _keep(installation, kept)
        now = time.monotonic()
        if now >= maintain_at and begin("maintenance", maintenance):
            maintain_at = now + NODE_INTERVAL_S
        if now >= round_at and (not _runs_watched(installation) or begin("live", live)):
            round_at = now + ROUND_S
        if select.select([stopped], [], [], LOOK_S)[0]:
            break
    for process in running.values():
        process.terminate()
        with suppress(subprocess.TimeoutExpired):
            process.wait(STOP_S)
    with suppress(subprocess.TimeoutExpired):
        subprocess.run(maintenance, check=False, timeout=LAST_S)
    _tell_left(installation)
    return 0


def _on_stop() -> int:
    """Return a descriptor that can be read as soon as SIGTERM or SIGINT came."""
    read, write = os.pipe()
    os.set_blocking(write, False)
    signal.set_wakeup_fd(write)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: None)
    return read


def _keep(installation: Installation, kept: dict[str, tuple[int, int]]) -> None:
    """Keep the nodes that have run hooks by now, but for those of another pod that lives."""
    for node in installation.nodes():
        if node not in kept and (locks := keep(installation.node(node))) is not None:
            kept[node] = locks


def _runs_watched(installation: Installation) -> bool:
    return any(Queue(installation.node(node), LIVE).all() for node in installation.nodes())


def _tell_left(installation: Installation) -> None:
    """Count what is left: runs are lost with the pod, and with its own disk all else."""
    for node in installation.nodes():
        paths = installation.node(node)
        runs = sum(name.isdigit() for name in names_in(paths.state))
        items = sum(map(len, waiting(paths).values()))
        if runs or items:
            complain(f"node {node} leaves {runs} runs without an epilog, and {items} items of its queue")
