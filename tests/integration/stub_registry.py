"""A registry that answers everything in one way, for failures that a real one does not make on demand.

Run as a program: `stub_registry.py PORT HOW`, where HOW is a status, `slow` (takes a request and never answers),
`html` (200 and an error page), or `cut` (promises more bytes than it sends).
"""

from __future__ import annotations

import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

PAGE = b"<html><body>come back later</body></html>"


def handler(how: str) -> type[BaseHTTPRequestHandler]:
    """Return a handler of all requests."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if self.path == "/v2/" and how in ("html", "cut", "404"):
                self.answer(200, b"{}")
            elif how == "slow":
                time.sleep(600)
            elif how.isdigit():
                self.answer(int(how), b'{"errors":[]}')
            else:
                self.answer(200, PAGE, 10_000 if how == "cut" else len(PAGE))

        do_HEAD = do_GET  # noqa: N815 - what http.server calls

        def answer(self, status: int, body: bytes, length: int | None = None) -> None:
            self.send_response(status)
            self.send_header("Content-Length", str(len(body) if length is None else length))
            self.end_headers()
            self.wfile.write(body)
            self.close_connection = True

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    return Handler


if __name__ == "__main__":
    ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), handler(sys.argv[2])).serve_forever()
