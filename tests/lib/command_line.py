"""An installation in a temp directory and a way to run the command line on it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from unittest import mock

from click.testing import CliRunner, Result

from warmstart.cli import cli, maintain
from warmstart.paths import Installation

POLICY = """\
version: 1
paths: {workspace: /var/tmp/w, store: /shared/w, audit: /var/log/w/audit.jsonl}
store_user: daemon
import_user: bin
validate_user: sys
images: {registries: [reg.example.com]}
rules:
  - name: everyone
    profiles: [numba]
  - name: gpu
    match: {partition: "gpu*"}
    images: ["docker://reg.example.com/base/app:1"]
    env: {CUDA_MODULE_LOADING: EAGER}
"""


def installed(root: Path, policy: str = POLICY) -> Installation:
    """Return an installation under `root` with this policy."""
    installation = Installation(str(root))
    path = Path(installation.policy)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(policy)
    return installation


def run(installation: Installation, *arguments: str) -> Result:
    """Run `warmstart ARGUMENTS…`. A bug is raised.

    Maintenance does not make this process idle: all later tests would be.
    """
    with mock.patch.object(maintain, "be_idle"):
        result = CliRunner().invoke(cli, arguments, obj=installation, prog_name="warmstart")
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


def answer(installation: Installation, *arguments: str) -> Any:  # noqa: ANN401 - JSON
    """Run a command with --json and return what it printed."""
    return json.loads(run(installation, *arguments, "--json").stdout)
