"""The steps of the hooks, one module each. plan.py defines their order."""
