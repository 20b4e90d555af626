"""Defects that are planted into status, metrics, and operator actions, to see that tests find
them."""

from __future__ import annotations

from .mutant import Mutant

MUTANTS = [
    Mutant(
        "metrics use the current minute",
        "one.rows[-2][1] for one in past",
        "one.rows[-1][1] for one in past",
        "test_metrics.py",
    ),
    Mutant(
        "metrics show permits in use as waiting",
        'put("waiting", group.waiting, group.name)',
        'put("waiting", group.in_use, group.name)',
        "test_metrics.py",
    ),
    Mutant(
        "metrics have no series for plain names by default",
        "            others += newest(2 * MAX_LABELS, using=self._using)\n",
        "",
        "test_metrics.py",
    ),
    Mutant(
        "a pause lasts until it is resumed",
        "string.match(paused, ' (%d+)$') or math.huge",
        "math.huge",
        "test_operators_actions.py",
    ),
    Mutant(
        "a second pause changes the start of the pause",
        'since = pause_of(self._overrides.get(f"p:{self._own.quoted}", ""))[0] or now',
        "since = now",
        "test_operators_actions.py",
    ),
    Mutant(
        "an action that changes nothing is recorded",
        "if not is_overridden and (not by_policy or exemption in self._overrides):",
        "if False:",
        "test_operators_actions.py",
    ),
    Mutant(
        "a quorum lock counts as free although a majority may hold it",
        "if len(good) >= needed:",
        "if good:",
        "test_operators_quorums.py",
    ),
    Mutant(
        "clear ends the lease on one quorum server only",
        "alias_of(status.name, using) if status.members else using",
        "using",
        "test_operators_quorums.py",
    ),
    Mutant(
        "names that are held for a day are not listed",
        "known = [*marked(using=using), *held_since(using=using)]",
        "known = marked(using=using)",
        "test_operators_status.py",
    ),
    Mutant(
        "the index of holders keeps free names",
        'if since else ("ZREM", quoted)',
        'if since else ("ZADD", 1, quoted)',
        "test_operators_status.py",
    ),
    Mutant(
        "the doctor reports ok for a check that it did not run",
        "if seen[0] >= seen[1]:",
        "if True:",
        "test_operators_doctor.py",
    ),
    Mutant(
        "an ambiguous id clears all matching holders",
        "if len(tokens) > 1:",
        "if False:",
        "test_command_act.py",
    ),
    Mutant(
        "minutes are added to the total too early",
        "if quarter == '' and age <= keep then",
        "if false then",
        "test_command_history.py",
    ),
]
