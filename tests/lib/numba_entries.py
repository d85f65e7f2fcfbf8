"""Tiny entries in Numba's format that pass the validator and are quick to make."""

from __future__ import annotations

import os
import pickle
import traceback
from pathlib import Path

from tests.lib.cache_files import relocatable
from tests.lib.privileges import drop_to

DIGEST = "0ff860c1" * 5
FOLDER = f"src_{DIGEST}"


def numba_entry(number: int, salt: bytes = b"", folder: str = FOLDER) -> tuple[str, dict[str, bytes]]:
    """Return the name and files of one function's entry. `salt` changes the content, not the name."""
    name = f"m.f-{number}.py311"
    index = pickle.dumps("0.68.1", -1) + pickle.dumps(("stamp", {("array",): f"{name}.1.nbc"}), -1)
    data = pickle.dumps((b"key" + salt, {"name": "f"}, relocatable(b"\x90" * 64)), -1)
    return f"{folder}/{name}", {f"{folder}/{name}.nbi": index, f"{folder}/{name}.1.nbc": data}


def numba_entries(*numbers: int, salt: bytes = b"", folder: str = FOLDER) -> dict[str, dict[str, bytes]]:
    """Return several entries with their files."""
    return dict(numba_entry(number, salt, folder) for number in numbers)


def write_as(uid: int, gid: int, top: Path, entries: dict[str, dict[str, bytes]]) -> None:
    """Write entries below a directory as a job of this uid does."""
    pid = os.fork()
    if not pid:
        status = 1
        try:
            drop_to(uid, gid)
            for files in entries.values():
                for path, data in files.items():
                    (top / path).parent.mkdir(parents=True, exist_ok=True)
                    (top / path).write_bytes(data)
            status = 0
        except OSError:
            traceback.print_exc()
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
