"""Defects that are planted into settings, checks, and test helpers, to see that tests find them."""

from __future__ import annotations

from .mutant import Mutant

MUTANTS = [
    Mutant(
        "methods with GET don't include HEAD",
        'return upper | {"HEAD"} if "GET" in upper else upper',
        "return upper",
        "test_defaults.py",
    ),
    Mutant(
        "limits_disabled drops all other settings",
        '{**given, "ENABLED": False}',
        '{"ENABLED": False}',
        "test_testing.py",
    ),
    Mutant(
        "a lease duration of 0 is accepted",
        'values.positive,\n        Option(None, "Seconds after',
        'values.not_negative,\n        Option(None, "Seconds after',
        "test_defaults.py",
    ),
    Mutant(
        "ASCII control characters are sent to a terminal",
        "if text.isascii() and text.isprintable():",
        "if text.isascii():",
        "test_command_status.py",
    ),
]
