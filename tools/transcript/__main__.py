"""Write docs/start/first-job.md: from a bare Debian 12 to the first warm job, with the package and no network."""

from __future__ import annotations

import re
import shutil
import tempfile
import time
from pathlib import Path

from tests.packages.roots import NODE, SHARED, suite

PAGE = Path(__file__).resolve().parents[2] / "docs" / "start" / "first-job.md"
HEAD = """\
# From a bare Debian 12 to the first warm job

Made by `make screenshots`: a root file system with Debian's essential packages and no network, in which apt finds in
its cache what the packages depend on; `make deb` had built warmstart's. From the installation on the commands are those
of [ten minutes](ten-minutes.md). No systemd runs there: a script of the name `systemctl` starts the daemons, and does
once what a timer does. Behind each command are the minutes and seconds since the first one, when it had ended.

"""


def main() -> None:
    """Build the package, install it, and have `tools.transcript.first_job` do the rest there."""
    debian = suite("bookworm")
    packages = Path(tempfile.mkdtemp(prefix="packages-", dir=SHARED))
    debian.build("make", "-s", "deb", f"PACKAGES={packages}")
    package = next(packages.glob("warmstart_*.deb"))
    try:
        with debian.fresh() as root:
            count = len(root.run("dpkg-query", "-W").splitlines())
            lines = [f"$ dpkg-query --show | wc -l  # 00:00\n{count}\n"]
            started = time.time()
            for name, what in (("slurmctld slurmd slurm-client munge …", NODE), (package.name, [package])):
                root.apt(*what)
                seconds = int(time.time() - started)
                lines.append(f"$ apt-get install {name}  # {seconds // 60:02}:{seconds % 60:02}\n")
            said = root.run(
                "env", "PYTHONPATH=hooks", ".venv/bin/python", "-m", "tools.transcript.first_job", str(started)
            )
    finally:
        shutil.rmtree(packages)
    text = re.sub(r"[\u2800-\u28ff] .*\n", "", "\n".join([*lines, said]))  # a spinner's last words
    PAGE.write_text(HEAD + "".join(f"    {line}".rstrip() + "\n" for line in text.rstrip().splitlines()))


if __name__ == "__main__":
    main()
