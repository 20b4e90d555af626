"""Defects of the settings, the checks, and what tests of projects use."""

from __future__ import annotations

from .plant import Plant

PLANTS = [
    Plant(
        "GET without HEAD",
        'return upper | {"HEAD"} if "GET" in upper else upper',
        "return upper",
        "test_values.py",
    ),
    Plant(
        "limits_disabled forgets all other settings",
        '{**given, "ENABLED": False}',
        '{"ENABLED": False}',
        "test_testing.py",
    ),
    Plant(
        "a name may be held for no time at all",
        'values.positive,\n        Option(None, "Seconds after',
        'values.not_negative,\n        Option(None, "Seconds after',
        "test_defaults.py",
    ),
    Plant(
        "what steers a terminal is sent where all of it is ASCII",
        "if text.isascii() and text.isprintable():",
        "if text.isascii():",
        "test_command_status.py",
    ),
]
