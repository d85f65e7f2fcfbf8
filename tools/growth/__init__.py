"""How the cost of hooks and maintenance grows with what a site has: `python -m tools.growth`."""
