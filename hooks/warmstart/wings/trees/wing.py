"""The declaration of the wing."""

from __future__ import annotations

from warmstart.wing import Wing

WING = Wing(
    about="trees of small files on the shared file system, which jobs read from packed copies",
    words={"tree": "read from the shared file system: this cluster offers no packed copies (policy: trees.prefixes)"},
    refuses=False,
    only_for="tree",
    keep="trees.keep",
    commands={"trees": "trees"},
    queue="packs",
)
