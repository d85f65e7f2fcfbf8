"""Run the trees that the real enroot makes of images with all kinds of configuration.

    python -m tools.real.configs

Run it as `tools.real` (CONTRIBUTING.md): it prints what belongs into tests/lib/data/enroot_trees.json.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.lib.accounts import ALICE, Account, Accounts
from tests.lib.image_configs import CASES, ImageCase, Tree, tree_at
from tests.lib.layer_stacks import archive, write_layout
from tests.lib.registry import Registry


def imported(base: Path, registry: str, user: Account, name: str, case: ImageCase) -> Tree:
    """Push an image, have enroot import it as a user, and return its tree."""
    own = base / name
    write_layout(own / "layout", [archive(items) for items in case.layers], config=case.config)
    options = ["--quiet", "--insecure-policy", "--format=v2s2", "--dest-tls-verify=false"]
    subprocess.run(
        ["skopeo", "copy", *options, f"oci:{own}/layout:import", f"docker://{registry}/team/{name}:1"], check=True
    )
    env = {"ENROOT_ALLOW_HTTP": "yes", "HOME": str(own), "LANG": "C", "ENROOT_SQUASH_OPTIONS": "-no-xattrs -comp zstd"}
    for place in ("", "runtime", "cache", "data", "temp"):
        (own / place).mkdir(exist_ok=True)
        os.chown(own / place, user.uid, user.gid)
        env |= {f"ENROOT_{place.upper()}_PATH": str(own / place)} if place else {}
    argv = ["enroot", "import", "--output", str(own / "image.sqsh"), f"docker://{registry}#team/{name}:1"]
    subprocess.run(
        ["setpriv", f"--reuid={user.uid}", f"--regid={user.gid}", "--clear-groups", *argv],
        env={"PATH": "/usr/bin:/bin:/usr/sbin", **env},
        check=True,
        stdout=2,
    )
    subprocess.run(["unsquashfs", "-no-progress", "-quiet", "-d", own / "tree", own / "image.sqsh"], check=True)
    return tree_at(own / "tree")


def main() -> int:
    """Import every image, and print the trees."""
    os.umask(0o022)
    with tempfile.TemporaryDirectory(prefix="ws-configs-", dir="/var/tmp") as directory:
        base = Path(directory)
        base.chmod(0o755)
        (base / "log").mkdir()
        accounts = Accounts(base / "home")
        try:
            with Registry(base) as registry:
                trees = {
                    name: imported(base, registry.url, accounts[ALICE], f"case{number}", case)
                    for number, (name, case) in enumerate(CASES.items())
                }
        finally:
            accounts.close()
    sys.stdout.write(text(trees))
    return 0


def text(trees: dict[str, Tree]) -> str:
    """Return trees in JSON, a line for each path."""
    parts = []
    for name, entries in trees.items():
        lines = [f" {json.dumps(path)}: {json.dumps(entry, ensure_ascii=False)}" for path, entry in entries.items()]
        parts.append(f"{json.dumps(name)}: {{\n" + ",\n".join(lines) + "\n}")
    return "{\n" + ",\n".join(parts) + "\n}\n"


if __name__ == "__main__":
    sys.exit(main())
