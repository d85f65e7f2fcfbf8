"""Print policies/schema.json."""

import sys

from warmstart.policy.model import schema_text

sys.stdout.write(schema_text())
