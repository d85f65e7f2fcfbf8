"""The commands of docs/start/ten-minutes.md where the package is installed, each with the time and what it printed.

Run by `tools.transcript` in a root file system of `tests/packages/fresh`, with the second in which it began.
"""

from __future__ import annotations

import sys
import time

from tests.packages.trial import Trial, page
from tools.terminal import captured


def main(started: float) -> None:
    """Follow the page from its second step on."""

    def say(command: str, output: str) -> None:
        seconds = int(time.time() - started)
        sys.stdout.write(f"$ {command}  # {seconds // 60:02}:{seconds % 60:02}\n{output.strip()}".rstrip() + "\n\n")

    with Trial() as trial:
        say("systemctl start munge slurmctld slurmd", trial.run("sinfo"))
        for command in page():
            line = command.line.replace("JOBID", str(trial.job))
            if command.path:
                say(f"cat {trial.write(command)}", command.text)
            elif line.startswith("warmstart "):
                say(line, captured(["/usr/bin/warmstart", *line.split()[1:]]))
            elif not line.startswith(("make deb", "apt install")):
                say(line, trial.run(line))


if __name__ == "__main__":
    main(float(sys.argv[1]))
