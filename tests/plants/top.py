"""Defects of the settings, the checks, and what tests of projects use."""

from __future__ import annotations

from .plant import Plant

MEMORY = "fuzz/test_memory.py::"
CHECKS = "test_checks.py::"
TERMS = "test_locks_terms.py::"
VALUES = "test_values.py::"

PLANTS = [
    Plant(
        "a check of five connections",
        "checks.py",
        "most >= FEWEST_CONNECTIONS",
        "most > FEWEST_CONNECTIONS",
        (CHECKS + "test_a_pool_that_is_too_small",),
    ),
    Plant(
        "a check of three connections",
        "checks.py",
        "FEWEST_CONNECTIONS = 4",
        "FEWEST_CONNECTIONS = 3",
        (CHECKS + "test_a_pool_that_is_too_small",),
    ),
    Plant(
        "marked handlers are no views with limits",
        "checks.py",
        "return any(True for _ in marks_of(view))",
        "return bool(getattr(view, '_redis_sync_policies', ()))",
        (CHECKS + "test_atomic_requests_around_limited_handlers_of_a_class",),
    ),
    Plant(
        "a KEY_PREFIX of CACHES is remembered",
        "conf.py",
        'if setting in (SETTING, "CACHES"):',
        "if setting in (SETTING,):",
        (TERMS + "test_a_prefix_that_caches_alone_say_counts_from_the_next_ask_on",),
    ),
    Plant(
        "memory: a token is granted twice",
        "memory.py",
        "    if token in name.held:\n        return _granted(name.held[token], now)\n",
        "",
        ("fuzz/test_memory.py",),
    ),
    Plant(
        "memory: newcomers pass the queue",
        "memory.py",
        "first = passes or next(iter(name.queue), token) == token",
        "first = True",
        ("fuzz/test_memory.py::test_nobody_passes_a_queue_but_those_who_would_not_be_fair",),
    ),
    Plant(
        "memory: who would not be fair passes those before it when it asks again",
        "memory.py",
        "token not in name.queue and not int",
        "not int",
        (MEMORY + "test_who_would_not_be_fair_but_had_to_wait_keeps_its_place",),
    ),
    Plant(
        "memory: a renewal out of order counts",
        "memory.py",
        "nth >= claim.nth:",
        "True:",
        (MEMORY + "test_of_two_renewals_the_later_one_counts_whichever_came_last",),
    ),
    Plant(
        "GET without HEAD",
        "values.py",
        'return upper | {"HEAD"} if "GET" in upper else upper',
        "return upper",
        (VALUES + "test_what_an_option_may_be",),
    ),
    Plant(
        "a limit of 0",
        "values.py",
        "if not 1 <= value <= most:",
        "if not 0 <= value <= most:",
        (CHECKS + "test_a_view_whose_limit_is_missing_or_impossible",),
    ),
    Plant(
        "a check gives no hint",
        "checks.py",
        '                hint="Put it last, or at least behind these.",\n',
        "",
        (CHECKS + "test_the_middleware_before_those_that_turn_requests_away",),
    ),
    Plant(
        "limits_disabled forgets all other settings",
        "testing.py",
        '{**given, "ENABLED": False}',
        '{"ENABLED": False}',
        ("test_testing.py::test_limits_disabled_changes_nothing_else",),
    ),
    Plant(
        "a name may be held for no time at all",
        "defaults.py",
        'values.positive,\n        Option(None, "Seconds after',
        'values.not_negative,\n        Option(None, "Seconds after',
        ("test_defaults.py::test_each_option_has_its_bounds_wherever_it_is_said",),
    ),
    Plant(
        "what steers a terminal is sent where all of it is ASCII",
        "logs.py",
        "if text.isascii() and text.isprintable():",
        "if text.isascii():",
        ("test_management_display.py::test_what_would_steer_a_terminal_is_shown",),
    ),
]
