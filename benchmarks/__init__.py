"""Benchmarks that compare this project with its peers: `python -m benchmarks --help`."""
