"""The packages, built for a distribution and installed in bare root file systems of it, without a network."""
