"""A relay in front of a registry that answers chosen requests with nonsense, and passes on the others."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import NamedTuple

PAGE = b"<html><body>We are back at 18:00.</body></html>"


class Answer(NamedTuple):
    """What is answered instead of the registry's answer."""

    status: int
    body: bytes = b""
    headers: tuple[tuple[str, str], ...] = (("Content-Type", "text/html"),)
    missing: int = 0  # bytes that are promised and not sent


class Relay:
    """A running relay. `answers` maps patterns of `METHOD PATH` to answers; the first that matches counts."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.answers: dict[str, Answer] = {}
        self.asked: list[str] = []  # each request, as METHOD PATH

    @contextmanager
    def saying(self, answers: dict[str, Answer]) -> Iterator[None]:
        """Answer so during a `with` block."""
        self.answers = answers
        try:
            yield
        finally:
            self.answers = {}


@contextmanager
def relayed(upstream: str) -> Iterator[Relay]:
    """Yield a relay to the registry `upstream` (HOST:PORT, plain HTTP)."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked = f"{self.command} {self.path}"
            relay.asked.append(asked)
            answer = next((a for pattern, a in relay.answers.items() if re.fullmatch(pattern, asked)), None)
            if answer is None:
                server = HTTPConnection(upstream, timeout=30)
                accepted = ", ".join(self.headers.get_all("Accept", []))
                server.request(self.command, self.path, headers={"Accept": accepted})
                reply = server.getresponse()
                kept = ("Content-Type", "Docker-Content-Digest", "Location")
                headers = tuple((name, value) for name, value in reply.getheaders() if name in kept)
                answer = Answer(reply.status, reply.read(), headers)
                server.close()
            self.send_response(answer.status)
            for name, value in (*answer.headers, ("Content-Length", str(len(answer.body) + answer.missing))):
                self.send_header(name, value)
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(answer.body)
            self.close_connection = True

        do_HEAD = do_GET  # noqa: N815 - what http.server calls

        def log_message(self, *_: object) -> None:
            """Log nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        relay = Relay(f"127.0.0.1:{server.server_address[1]}")
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield relay
        finally:
            server.shutdown()
