"""Helion's tuned configurations (docs/cache-formats.md, Helion).

`<sha256>.best_config` is an entry: what hours of autotuning chose for one kernel and one shape, as JSON. The hash is
of a key that names the GPU and the kernel's source, but no version of torch, Triton or Helion: the image decides these.
`triton/<device>/` has Triton's cache where the job has none of its own.

Never harvested: `tmp.<uuid>`; `cute/`, whose files name the job's working directory in their key.
"""

from __future__ import annotations

from warmstart.lean import TYPE_CHECKING, loads
from warmstart.profiles.contract import Profile, named_by
from warmstart.profiles.nested import NestedCaches

if TYPE_CHECKING:
    from warmstart.profiles.entry_files import EntryFiles

BEST = r"([0-9a-f]{64}\.best_config)"
_NESTED = NestedCaches(named_by(BEST), ((r"triton/[0-9]{1,3}/", "triton"),))


def validate(files: EntryFiles) -> None:
    """Require what Helion reads: a configuration, and the fields of the key that it is for.

    Catches: a truncated file, one of another form. Cannot catch: other numbers. Helion skips what it cannot read.
    """
    if _NESTED.holds(files.entry):
        _NESTED.validate(files)
    else:
        check_best(files)


def check_best(files: EntryFiles) -> None:
    """Require one configuration of Helion, wherever it lies."""
    from warmstart.profiles.entry_files import EntryInvalid
    from warmstart.profiles.formats import plain

    content = plain.read_json(files, files.names[0])
    config, key = content.get("config"), content.get("key")
    fields = key.get("fields") if isinstance(key, dict) else None
    if not isinstance(config, str) or not isinstance(fields, dict) or not fields.get("hardware"):
        raise EntryInvalid("field-malformed")
    if not all(isinstance(value, str) for value in fields.values()):
        raise EntryInvalid("field-malformed")
    try:
        chosen = loads(config)
    except (ValueError, RecursionError) as error:
        raise EntryInvalid("json-malformed") from error
    if not isinstance(chosen, dict):
        raise EntryInvalid("json-malformed")


PROFILE = Profile(
    name="helion",
    variables={"HELION_CACHE_DIR": "{dir}"},
    defaults={"HELION_CACHE_DIR": "{TMPDIR:/tmp}/torchinductor_{user}/helion"},
    relocation="constant-path",  # Triton's
    facts=("image", "gpu", "machine"),
    entry_of=_NESTED.entry_of,  # the path of one configuration, or Triton's entry
    validate=validate,
    in_step=True,
)
