"""Mutants: defects that `python -m tests.mutants` plants in the package. The tests must detect each
mutant."""
