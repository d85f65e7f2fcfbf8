"""Nodes that are pods of Slurm 26.05 in Kubernetes: `pods.py` and `jail.py`; and the image.

What an image's Dockerfile does is done in that root, which stands for Slinky's.
"""

from __future__ import annotations

import re
import subprocess
import tempfile
from pathlib import Path

import pytest

from tests.releases.roots import passes, root_of

pytestmark = pytest.mark.sweep
ROOT = Path(__file__).resolve().parents[2]
# What Slinky's slurmd-pyxis has, as far as the Dockerfile looks at it. There is no network: the packages are there.
# The accounts of the tests' clusters are there while one runs in that root.
PYXIS = """
for account in warmstart warmstart-import warmstart-validate; do userdel --force "$account" || true; done
mkdir -p /etc/enroot/hooks.d /usr/share/pyxis /etc/supervisor/conf.d /made
echo "required /usr/lib/spank_pyxis.so" >/usr/share/pyxis/pyxis.conf
printf '%s\\n' '#!/bin/sh' '[ "$2" = update ] || { shift 3 && dpkg-query --show "$@"; }' >/usr/local/bin/apt-get
chmod 755 /usr/local/bin/apt-get
"""
CHECK = """
grep "spank_pyxis.so importer=/usr/libexec/warmstart/pyxis-importer" /usr/share/pyxis/pyxis.conf
for program in prolog epilog timers jail pyxis-importer; do test -x "/usr/libexec/warmstart/$program"; done
test -x /etc/enroot/hooks.d/40-warmstart.sh
for program in $(sed -n s/^command=//p /etc/supervisor/conf.d/warmstart.conf); do test -x "$program"; done
grep /usr/libexec/warmstart/timers /etc/supervisor/conf.d/warmstart.conf
test "$(id -u warmstart) $(id -u warmstart-import) $(id -u warmstart-validate)" = "901 902 903"
mkdir -p /etc/warmstart
.venv/bin/python -c 'import sys, yaml
for found in yaml.safe_load(open("packaging/slinky/values.yaml"))["extraObjects"]:
    sys.stdout.write(found.get("data", {}).get("policy.yaml", ""))' >/etc/warmstart/policy.yaml
warmstart policy check
printf '%s\\n' ClusterName=c SlurmctldHost=localhost PlugStackConfig=/tmp/plugstack.conf >/tmp/slurm.conf
echo "include /usr/share/warmstart/plugstack.conf.d/*" >/tmp/plugstack.conf
SLURM_CONF=/tmp/slurm.conf sbatch --help | grep -- --warm-image
"""


@pytest.fixture
def root(capable_host: None) -> str:
    return root_of("sid", "supervisor", "iproute2")


@pytest.mark.parametrize("file", ["tests/releases/pods.py", "tests/releases/jail.py"])
def test_nodes_that_are_pods(root: str, file: str) -> None:
    passes(root, file)


def test_the_commands_of_the_dockerfile(root: str) -> None:
    text = (ROOT / "packaging/slinky/Dockerfile").read_text().replace("\\\n", "")
    script = PYXIS
    for command, rest in re.findall(r"^(RUN|WORKDIR|COPY) (.*)$", text, re.MULTILINE):
        source, target = ["", *rest.split()][-2:]
        if command == "RUN":
            script += f"( {rest} )\n"
        elif command == "WORKDIR":
            script += f"cd {rest}\n"
        elif source == ".":
            script += f"mkdir {target} && tar -cC {ROOT} --exclude=./.venv --exclude=./build . | tar -xC {target}\n"
        else:
            script += f"cp -a {source}. {target}\n" if "--from" in rest else f"cp -a {ROOT}/{source} {target}\n"
    script += f"cd {ROOT}\n{CHECK}"
    with tempfile.TemporaryDirectory(dir="/var/tmp") as scratch:
        argv = [str(ROOT / "tests/releases/packages/fresh"), scratch, root, root, "sh", "-euxc", script]
        done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=600)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
