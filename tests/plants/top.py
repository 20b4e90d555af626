"""Defects of the settings, the checks, and what tests of projects use."""

from __future__ import annotations

from .plant import Plant

CHECKS = "test_checks.py::"
VALUES = "test_values.py::"

PLANTS = [
    Plant(
        "DRF by user in ENDPOINTS is fine",
        "checks.py",
        'if policy is not None and policy.key == "user":',
        "if False:",
        (CHECKS + "test_a_view_of_django_rest_framework_limited_by_user_from_outside",),
    ),
    Plant(
        "a check of three connections",
        "checks.py",
        "FEWEST_CONNECTIONS = 4",
        "FEWEST_CONNECTIONS = 3",
        (CHECKS + "test_a_pool_that_is_too_small",),
    ),
    Plant(
        "memory: a give-up that was granted is gone",
        "memory.py",
        '    if how == "giveup" and claim is not None:\n        return _granted(claim, now)\n',
        "",
        ("fuzz/test_memory.py",),
    ),
    Plant(
        "memory: a resize is not heeded",
        "memory.py",
        "limit = self.override or claim.limit",
        "limit = claim.limit",
        ("fuzz/test_memory.py",),
    ),
    Plant(
        "a limit of 0",
        "values.py",
        "if not 1 <= value <= most:",
        "if not 0 <= value <= most:",
        (CHECKS + "test_a_view_whose_limit_is_missing_or_impossible",),
    ),
    Plant(
        "a status of 200",
        "values.py",
        "if not 400 <= value <= 599:",
        "if not 100 <= value <= 599:",
        (VALUES + "test_what_an_option_may_be",),
    ),
]
