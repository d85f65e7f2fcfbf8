"""Real pyxis and enroot in a cluster; CONTRIBUTING.md says how to build them."""
