"""Defects of what operators see: the command and the pages."""

from __future__ import annotations

from .plant import Plant

CONSOLE_FIGURES = "test_console_figures.py::"
DISPLAY = "test_management_display.py::"
USING = "test_operators_using.py::"

PLANTS = [
    Plant(
        "a reset is harmful",
        "console/acting.py",
        'return self.verb in ("resume", "reset")',
        'return self.verb in ("resume",)',
        (CONSOLE_FIGURES + "test_acts_that_take_something_back_are_harmless",),
    ),
    Plant(
        "releasing says what had ended",
        "console/acting.py",
        "gone=len(set(references)) - amount",
        "gone=0",
        (CONSOLE_FIGURES + "test_those_chosen_are_released_and_those_shown_are_cleared",),
    ),
    Plant(
        "a chart of steps has one too many",
        "console/charts.py",
        "length = max(1, -(-len(rows) // STEPS))",
        "length = max(1, len(rows) // STEPS)",
        (CONSOLE_FIGURES + "test_minutes_are_put_together_by_their_highest_peak_and_their_sums",),
    ),
    Plant(
        "children by name",
        "console/pages.py",
        "return sorted(group.children, key=lambda s: (-s.waiting, -s.in_use))[:MOST_CHILDREN]",
        "return list(group.children)[:MOST_CHILDREN]",
        (CONSOLE_FIGURES + "test_a_policy_stands_above_the_keys_for_which_most_wait",),
    ),
    Plant(
        "mean waits are those of holds",
        "console/pages.py",
        "return _mean(total.wait_seconds, total.waited)",
        "return _mean(total.held_seconds, total.released)",
        (CONSOLE_FIGURES + "test_a_page_of_a_name_says_how_many_are_not_shown_and_means",),
    ),
    Plant(
        "sorting twice sorts alike",
        "console/views.py",
        'link(o=f"-{field}" if now else field)',
        "link(o=field)",
        (CONSOLE_FIGURES + "test_links_keep_the_search_and_turn_the_order",),
    ),
    Plant(
        "acts from the command forget the reason",
        "management/commands/locks.py",
        "names = act(plain, child, using, reason=reason)",
        "names = act(plain, child, using, reason='')",
        (USING + "test_the_command_acts_and_reads_there",),
    ),
    Plant(
        "a full name is not marked",
        "management/display.py",
        "full = one.in_use >= one.limit",
        "full = one.in_use > one.limit",
        (DISPLAY + "test_a_full_name_is_shown_in_a_colour_of_its_own",),
    ),
    Plant(
        "a kept lease looks held",
        "management/display.py",
        '_("(released, kept by min_hold)") if h.state == "kept" else ""',
        '""',
        (DISPLAY + "test_holders_and_waiters_are_told_with_their_oddities",),
    ),
    Plant(
        "a typed address is no key",
        "management/naming.py",
        "return [*known, *possible, key][0]",
        "return key",
        (DISPLAY + "test_a_key_may_be_typed_as_people_know_it",),
    ),
    Plant(
        "run --skip waits for ever",
        "management/runner.py",
        "wait = 0.0 if order.skip and order.wait is None else order.wait",
        "wait = order.wait",
        (DISPLAY + "test_a_command_runs_on_the_terms_that_were_given",),
    ),
    Plant(
        "run ignores --limit",
        "management/runner.py",
        'limit = order.limit or (None if "limit" in named else 1)',
        'limit = None if "limit" in named else 1',
        (DISPLAY + "test_a_command_runs_on_the_terms_that_were_given",),
    ),
]
