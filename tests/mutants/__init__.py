"""Defects planted in the package, which the tests have to find: `python -m tests.mutants`."""
