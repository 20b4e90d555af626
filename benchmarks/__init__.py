"""Benchmarks that compare this project with other lock libraries: `python -m benchmarks --help`."""
