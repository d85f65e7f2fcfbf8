"""A proxy in front of the registry, which at times answers with something else than the registry said."""

from __future__ import annotations

import http.client
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

_HTML = b"<!DOCTYPE html><title>Maintenance</title><p>We will be back at noon."
_PASSED = ("Content-Type", "Docker-Content-Digest", "WWW-Authenticate", "Location", "Range", "Accept", "Authorization")
KINDS = ("a maintenance page", "an altered answer", "an error", "a redirect", "a cut answer")


class Front:
    """Context manager: the proxy, at `url`. It passes everything on, but within `nonsense`."""

    def __init__(self, registry: str) -> None:
        self.kind = ""
        front = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                front._answer(self, registry)

            def do_HEAD(self) -> None:
                front._answer(self, registry)

            def log_message(self, *_: object) -> None:
                """Say nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"127.0.0.1:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)

    def __enter__(self) -> Front:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    @contextmanager
    def nonsense(self, kind: str) -> Iterator[None]:
        """Answer all requests with one of `KINDS`."""
        self.kind = kind
        try:
            yield
        finally:
            self.kind = ""

    def _answer(self, asked: BaseHTTPRequestHandler, registry: str) -> None:
        kind = self.kind
        if kind in ("a maintenance page", "an error"):
            _send(asked, 200 if kind == "a maintenance page" else 502, [("Content-Type", "text/html")], _HTML)
            return
        if kind == "a redirect":
            _send(asked, 307, [("Location", "http://169.254.169.254/latest/meta-data")], b"")
            return
        connection = http.client.HTTPConnection(registry, timeout=60)
        try:
            wanted = {name: value for name in _PASSED if (value := asked.headers.get(name))}
            connection.request(asked.command, asked.path, headers={**wanted, "Host": registry})
            answer = connection.getresponse()
            body = answer.read()
            passed = [(name, value) for name in _PASSED if (value := answer.getheader(name))]
            length = int(answer.getheader("Content-Length") or len(body))
        except OSError:
            _send(asked, 504, [], b"")
            return
        finally:
            connection.close()
        if kind == "an altered answer":  # a manifest stays one, and has another digest
            body, length = (body + b"\n", length + 1) if body.startswith(b"{") else (body[::-1], length)
        if kind == "a cut answer":
            body = body[: len(body) // 2]
        _send(asked, answer.status, passed, body, length)


def _send(
    asked: BaseHTTPRequestHandler, status: int, headers: list[tuple[str, str]], body: bytes, length: int | None = None
) -> None:
    """Send an answer that says that it has `length` bytes, and close the connection where it has fewer."""
    try:
        asked.send_response(status)
        for name, value in headers:
            asked.send_header(name, value)
        asked.send_header("Content-Length", str(len(body) if length is None else length))
        asked.end_headers()
        if asked.command != "HEAD":
            asked.wfile.write(body)
            asked.close_connection = length is not None and length != len(body)
    except OSError:  # nobody waits for it any more
        asked.close_connection = True
