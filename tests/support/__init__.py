"""What tests share: sample values, stand-ins, and places with real accounts and mounts.

A real cluster is in `tests.cluster`.
"""
