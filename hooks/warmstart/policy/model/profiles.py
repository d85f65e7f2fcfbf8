"""Keys about profiles: those that the site defines, and the files that jobs declare."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from warmstart.policy.model.scalars import NamePattern, PathPattern, Section, Size, Value, Variable, default
from warmstart.profiles.defined import Format

DerivedFact = Literal["cpu", "driver", "gpu", "machine"]
_GPU: list[DerivedFact] = ["gpu"]
MOST = 32  # patterns of a kind: root compares each with every name


class DefinedProfile(Section):
    """A cache that warmstart does not know: its variables, its entries, how they are checked (docs/profiles.md)."""

    variables: Annotated[dict[Variable, Value], Field(min_length=1)] = Field(
        description="What points the tool at its cache; {dir} is the profile's directory in the job's cache."
    )
    entries: Annotated[list[PathPattern], Field(min_length=1, max_length=MOST)] = Field(
        description="What is published whole: PATTERN/ a directory with all that is in it, PATTERN a file."
    )
    never: Annotated[list[NamePattern], Field(max_length=MOST)] = Field(
        default_factory=list,
        description="Names of files and directories that are left out, besides locks and temporary files.",
    )
    needs: Annotated[list[NamePattern], Field(max_length=MOST)] = Field(
        default_factory=list, description="Names of files without which an entry is not complete."
    )
    formats: Annotated[dict[NamePattern, Format], Field(max_length=MOST)] = Field(
        default_factory=dict,
        description="How files are checked, by their names; the first that fits counts, others are not looked into.",
    )
    facts: list[DerivedFact] = Field(
        default_factory=list, description="What must be the same besides the image: what entries depend on."
    )
    relocation: Literal["relocatable", "constant-path"] = Field(
        default="constant-path", description="Whether entries are of use at another path than where they were made."
    )
    max_size: Size = default("1GiB", "Bytes of one entry; a larger one is refused.")
    only_successful: bool = Field(default=False, description="Harvest it only from jobs that ended well.")


class Files(Section):
    """Files that jobs declare with `files=NAME` and leave in $WARMSTART_FILES."""

    include: Annotated[list[PathPattern], Field(min_length=1, max_length=MOST)] = Field(
        default_factory=lambda: ["**"],
        description="What is kept: PATTERN/ a directory with all that is in it, PATTERN a file.",
    )
    never: Annotated[list[NamePattern], Field(max_length=MOST)] = Field(
        default_factory=list,
        description="Names of files and directories that are not, besides locks and temporary files.",
    )
    facts: list[DerivedFact] = Field(
        default_factory=lambda: list(_GPU), description="What must be the same besides the image and the declared name."
    )
    max_size: Size = default("1GiB", "Bytes of one file or directory; a larger one is refused.")
    only_successful: bool = Field(
        default=True,
        description="Keep only what jobs leave that ended well: nothing tells half a file from a whole one.",
    )
