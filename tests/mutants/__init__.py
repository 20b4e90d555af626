"""Mutants: defects that `python -m tests.mutants` plants into the package. The tests must find each
of them."""
