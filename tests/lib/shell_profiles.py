"""Profiles whose entries a shell can write: `alpha` has the variable ALPHA_CACHE, and a pattern for its entries."""

from __future__ import annotations


def profiles(**patterns: str) -> str:
    """Return a policy's section `profiles`, by name and pattern."""
    rows = ["profiles:"]
    for name, pattern in patterns.items():
        rows += [
            f"  {name}:",
            f'    variables: {{{name.upper()}_CACHE: "{{dir}}"}}',
            f'    entries: {{"{pattern}": []}}',
            "    relocation: relocatable",
        ]
    return "\n".join(rows) + "\n"
