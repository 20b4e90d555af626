"""Benchmarks: this project and its peers, side by side. `python -m benchmarks --help`."""
