"""The ports that the job of the sweeps of all hooks gets."""

from __future__ import annotations

from tests.lib.wing_hooks import WingHooks

HOOKS = WingHooks(rule="rendezvous: {{ports: 28000-28999, shared_nodes: true}}")
