"""Defects of the package that the tests must find: `python -m tests.mutants`."""
