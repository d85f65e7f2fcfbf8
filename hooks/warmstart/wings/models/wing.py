"""The declaration of the wing."""

from __future__ import annotations

from warmstart.wing import Wing

WING = Wing(
    about="weights of models, which jobs read from copies on their node's disk",
    words={"model": "read from the shared file system: this cluster offers no copies (policy: models.prefixes)"},
    repeats=("model",),
    refuses=False,
    only_for="model",
    commands={"models": "models"},
    queue="models",
)
