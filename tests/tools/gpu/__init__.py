"""The suite of `make gpu`: each tool's job cold and warm through the real hooks, on a machine with an NVIDIA GPU."""
