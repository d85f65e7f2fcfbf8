"""A further registry for tests: one that requires a password."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.lib import config, processes
from tests.lib.accounts import lookup

USER = "carol"
PASSWORD = "open-sesame"
HTPASSWD = "carol:$2y$05$abcdefghijklmnopqrstuutXu9KzOt.1yBoZUeFWoT/914/JfszCO\n"  # bcrypt of it


@contextmanager
def private(base: Path) -> Iterator[str]:
    """Yield HOST:PORT of an empty registry below `base` that requires a user and a password."""
    port = config.free_ports(1)[0]
    home = base / f"private-registry-{port}"  # modules of one session have one each
    (home / "data").mkdir(parents=True)
    account = lookup("docker-registry", home)
    (home / "htpasswd").write_text(HTPASSWD)
    os.chown(home / "data", account.uid, account.gid)
    (home / "config.yml").write_text(
        f"version: 0.1\nlog: {{level: error}}\nstorage: {{filesystem: {{rootdirectory: {home}/data}}}}\n"
        f"http: {{addr: '127.0.0.1:{port}'}}\nauth: {{htpasswd: {{realm: r, path: {home}/htpasswd}}}}\n"
    )
    argv = ["/usr/bin/docker-registry", "serve", str(home / "config.yml")]
    server = processes.start(base, "private-registry", argv, account=account)
    try:
        processes.wait_until("the private registry", lambda: config.listening(port), 30)
        yield f"127.0.0.1:{port}"
    finally:
        processes.stop(server)


def push_private(registry: str, source: str, name: str) -> None:
    """Copy an image into a private registry. `source` is skopeo's name for it, `name` includes its tag."""
    subprocess.run(
        ["skopeo", "copy", "--quiet", "--insecure-policy", "--src-tls-verify=false", "--dest-tls-verify=false",
         f"--dest-creds={USER}:{PASSWORD}", source, f"docker://{registry}/{name}"],
        check=True, capture_output=True, timeout=60,
    )  # fmt: skip
