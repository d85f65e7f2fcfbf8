"""The units of the socket."""

from __future__ import annotations

import re
from pathlib import Path

from warmstart.paths import Installation
from warmstart.wings import step_images
from warmstart.wings.step_images.place import program_of, socket_of

UNITS = Path(step_images.__file__).with_name("systemd")


def test_the_socket_for_steps_is_where_they_ask() -> None:
    listens = dict(re.findall(r"^(\w+)=(.*)$", (UNITS / "warmstart-step-images.socket").read_text(), re.MULTILINE))
    usr = Installation("/usr")
    assert listens["ListenStream"].replace("@VAR@", usr.var) == socket_of(usr)
    assert (listens["SocketMode"], listens["DirectoryMode"]) == ("0666", "0711")
    assert "Accept" not in listens
    service = dict(re.findall(r"^(\w+)=(.*)$", (UNITS / "warmstart-step-images.service").read_text(), re.MULTILINE))
    assert service["ExecStart"].replace("@PREFIX@", "/usr") == program_of(usr)
    assert (service["KillMode"], service["PartOf"]) == ("process", "warmstart-step-images.socket")
    assert {"CPUWeight", "MemoryHigh", "MemoryMax", "TasksMax"} <= service.keys()
