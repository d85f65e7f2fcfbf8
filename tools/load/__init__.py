"""Load: many short jobs of all kinds on the four-node cluster, while faults are injected; then nothing may be left."""
