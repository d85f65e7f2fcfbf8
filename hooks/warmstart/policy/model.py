"""The policy's keys: types, defaults and what each is for. Alone imports pydantic; never in a hook's warm path.

`python -m warmstart.policy.model` prints policies/schema.json. Only keys that something honours
stand here: a key that is accepted and ignored is worse than one that is refused. What concerns
several keys at once is in `checks`.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    WithJsonSchema,
)

from warmstart.policy import explain, units
from warmstart.policy.explain import Fault

LABEL = r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}"
ACCOUNT = r"[A-Za-z_][A-Za-z0-9_.-]{0,31}"
REGISTRY = r"[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?(:[1-9][0-9]{0,4})?"
# What the image code makes of it is decided there; this keeps blanks, controls and options out.
REFERENCE = r"docker://[A-Za-z0-9][A-Za-z0-9._:/#@-]{0,511}"
PATH = r"/[A-Za-z0-9_.@+=%/-]{1,1023}"
VARIABLE = r"[A-Za-z_][A-Za-z0-9_]{0,127}"
# TaskProlog's values end at the newline and are not quoted (Slurm's prolog_epilog.html).
VALUE = r"[^\x00-\x1f\x7f-\x9f\ud800-\udfff]{0,4096}"
PATTERN = r"[^\x00-\x1f\x7f-\x9f\ud800-\udfff]{1,256}"


def _matches(pattern: str, what: str) -> AfterValidator:
    compiled = re.compile(pattern)

    def check(text: str) -> str:
        if not compiled.fullmatch(text):
            raise ValueError(f"{ascii(text)} is not {what}")
        return text

    return AfterValidator(check)




def _quantity(parse: Callable[[object], int], pattern: str) -> Any:  # noqa: ANN401 - the same
    return Annotated[
        int,
        BeforeValidator(parse),
        WithJsonSchema({"type": "string", "pattern": f"^{pattern}$"}),
    ]


def _listed(value: object) -> object:
    return [value] if isinstance(value, str) else value


# pydantic evaluates these; for mypy they are the plain types that they come to.
Label = Annotated[str, _matches(LABEL, "a name: letters, digits, _ . -, at most 64")]
Account = Annotated[str, _matches(ACCOUNT, "a user name")]
Path = Annotated[str, _matches(PATH, "an absolute path of letters, digits and _.@+=%-/")]
Registry = Annotated[str, _matches(REGISTRY, "a registry: host or host:port, in lower case")]
Reference = Annotated[str, _matches(REFERENCE, "an image: docker://REGISTRY/REPOSITORY:TAG")]
