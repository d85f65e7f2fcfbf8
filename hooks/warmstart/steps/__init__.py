"""One module per step; the order per hook is in plan.py."""
