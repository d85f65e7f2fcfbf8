"""A registry that answers every request in one way, for failures that a real one does not produce on demand.

Run as a program: `stub_registry.py PORT HOW [CERTIFICATE]`, with TLS if there is one, where HOW is a status, `slow`
(takes a request and never answers), `html` (200 and an error page), `cut` (promises more bytes than it sends), `to=URL`
(a redirect for all but /v2/), or `seen=FILE` (logs the requests). The last one, and TLS, are on every
address of the host.
"""

from __future__ import annotations

import ssl
import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

PAGE = b"<html><body>come back later</body></html>"


def handler(how: str) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            word, _, rest = how.partition("=")
            if self.path == "/v2/" and word in ("html", "cut", "403", "404", "to"):
                self.answer(200, b"{}")
            elif word == "to":
                self.answer(307, b"", headers={"Location": rest})
            elif word == "seen":
                with open(rest, "a", encoding="utf-8") as file:
                    file.write(f"{self.path}\n")
                self.answer(200, PAGE)
            elif how == "slow":
                time.sleep(600)
            elif how.isdigit():
                self.answer(int(how), b'{"errors":[]}')
            else:
                self.answer(200, PAGE, 10_000 if how == "cut" else len(PAGE))

        do_HEAD = do_GET  # noqa: N815 - what http.server calls

        def answer(
            self, status: int, body: bytes, length: int | None = None, headers: dict[str, str] | None = None
        ) -> None:
            self.send_response(status)
            for name, value in (headers or {}).items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(body) if length is None else length))
            self.end_headers()
            self.wfile.write(body)
            self.close_connection = True

        def log_message(self, *_: object) -> None:
            """Log nothing."""

    return Handler


if __name__ == "__main__":
    port, how, *certificate = sys.argv[1:]
    address = "0.0.0.0" if certificate or how.startswith("seen=") else "127.0.0.1"
    server = ThreadingHTTPServer((address, int(port)), handler(how))
    for file in certificate:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(file)
        server.socket = context.wrap_socket(server.socket, server_side=True)
    server.serve_forever()
