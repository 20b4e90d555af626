"""Defects that are planted into the package: `python -m tests.mutants`. The tests must find
each."""
