"""What the importer of a step asks this node's root for: the import that a prolog would have asked for.

Runs as the job's user. The step names its image to root at a socket (`server`): one line with the canonical
reference, a blank, and the step's nodes. Root finds out by itself which job asks, waits for the image as a prolog does,
up to `images.wait`, and answers with one line, an `Answer` as JSON. Before that it sends an empty line (`HEARD`),
within a second: what says nothing for so long is out of order. A step waits longer than `images.wait` by asking again.

A socket of anybody but root is none.
"""

from __future__ import annotations

import json
import random
import socket
import struct
import time
from collections.abc import Callable
from contextlib import suppress
from typing import NamedTuple

from warmstart.errors import StoreError
from warmstart.host import wire
from warmstart.host.deadline import after
from warmstart.images.reference import Reference
from warmstart.images.store.layout import IMPORT_S, UNPACK_S
from warmstart.policy.keys import Images

THERE, ALONE, BUSY, FAILED, BROKEN = "there", "alone", "busy", "failed", "broken"
EXPIRED = "image-wait-expired"
NO_CACHES = "-"
HEARD = b"\n"  # the line before an answer that takes its time
HEARD_S = 1.0
WAITS, GOES_ON = b"w", b"g"  # what root's process that answers tells its server, on descriptor 1
MOST_BROKEN = 3  # lines that break off one after the other; then root's program is out of order
LONGEST_LINE = 1 << 16  # bytes of a question
LONGEST = 8192  # bytes of an answer
LONGEST_TEXT = 2000  # characters of one text in it
ANSWER_S = 60.0  # beyond `images.wait` and `UNPACK_S`, for what comes before and after the wait
CONNECT_S = 5.0
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.5, 5.0
_CREDENTIALS = struct.Struct("3i")


class ImageDeclined(StoreError):
    """Root does not give a step its image. The text and the advice are those of the cause, which has its own code."""

    code = "image-declined"
    template = "{text}"
    hint = "if you cannot mend it, tell the administrators: `warmstart audit --job ID` has the cause"


class Answer(NamedTuple):
    """What root says."""

    said: str  # THERE | ALONE: import it yourself | BUSY: ask again | FAILED; and BROKEN, which root does not say
    path: str = ""
    kind: str = ""  # of the error, as the rest
    code: str = ""
    text: str = ""
    hint: str = ""
    caches: str = NO_CACHES  # which the step's container has: their key (`state.Caches`)

    def encode(self) -> bytes:
        """Return the line that root sends."""
        cut = (value if len(value) <= LONGEST_TEXT else f"{value[:LONGEST_TEXT]}…" for value in self)
        return json.dumps(list(cut)).encode() + b"\n"


def obtain(
    path: str, reference: Reference, rules: Images, find: Callable[[], str], *, waits_on: bool, nodes: str = ""
) -> Answer:
    """Ask at the socket `path`, and wait as long as the policy says: up to `wait`, or as long as an import may take.

    `nodes` are those of the step, as Slurm tells it (`job.STEP_NODES`). `find` looks for the image in the store as
    the user; it is called while root is busy with others.
    """
    end, pause = after(IMPORT_S if waits_on else rules.wait), FIRST_PAUSE_S
    broken = 0
    while True:
        answer = ask(path, reference, rules.wait + UNPACK_S + ANSWER_S, nodes)
        broken = broken + 1 if answer.said == BROKEN else 0
        if broken == MOST_BROKEN:
            return Answer(ALONE)
        is_open = answer.said in (BUSY, BROKEN) or (answer.code == EXPIRED and waits_on)
        if not is_open or end.expired():
            return answer
        # S311: jitter between the steps of many users; no secret
        time.sleep(pause * (0.5 + random.random()))  # noqa: S311
        pause = min(pause * 1.5, LONGEST_PAUSE_S)
        if found := find():
            return Answer(THERE, found)


def ask(path: str, reference: Reference, seconds: float, nodes: str = "") -> Answer:
    """Ask once; ALONE if nobody of root's listens there, BROKEN if the line breaks off, or nobody says a word."""
    question = f"{reference.canonical()} {nodes}\n".encode("utf-8", "surrogateescape")
    if len(question) > LONGEST_LINE:  # as if this were the step's only node
        return ask(path, reference, seconds)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as line:
        line.settimeout(CONNECT_S)
        try:
            line.connect(path)
        except BlockingIOError:  # more wait to be let in than the kernel keeps
            return Answer(BUSY)
        except OSError:
            return Answer(ALONE)
        if peer(line)[1] != 0:
            return Answer(ALONE)
        line.settimeout(HEARD_S)
        try:
            with suppress(BrokenPipeError):  # root has answered already, and has no place for this
                line.sendall(question)
            first = line.recv(1)
            line.settimeout(seconds)
            return _decode(_read(line, b"" if first == HEARD else first))
        except (OSError, ValueError):
            return Answer(BROKEN)


def peer(line: socket.socket) -> tuple[int, int, int]:
    """Return pid, uid and gid of the process at the other end when it connected, or listened (unix(7))."""
    pid, uid, gid = _CREDENTIALS.unpack(line.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size))
    return pid, uid, gid


def _read(line: socket.socket, data: bytes) -> bytes:
    while not data.endswith(b"\n"):
        piece = line.recv(LONGEST)
        data += piece
        if not piece or len(data) > LONGEST:
            raise ValueError("no whole line")
    return data


def _decode(data: bytes) -> Answer:
    answer: Answer = wire.decode(Answer, wire.parse(data))
    return answer
