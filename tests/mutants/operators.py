"""Defects of what operators read and do."""

from __future__ import annotations

from .plant import Plant

PLANTS = [
    Plant(
        "metrics: the minute that is not over",
        "h.rows[0][1] for h in histories",
        "h.rows[1][1] for h in histories",
        "test_metrics.py",
    ),
    Plant(
        "metrics: waiting is in use",
        'families["waiting"].add_metric(label, group.waiting)',
        'families["waiting"].add_metric(label, group.in_use)',
        "test_metrics.py",
    ),
    Plant(
        "metrics: plain names have no series by default",
        "            others += newest(2 * MAX_LABELS, using=self._using)\n",
        "",
        "test_metrics.py",
    ),
    Plant(
        "a pause lasts until it is resumed",
        "string.match(paused, ' (%d+)$') or math.huge",
        "math.huge",
        "test_operators_pauses.py",
    ),
    Plant(
        "pausing again forgets since when",
        "since = pause_of(stored)[0] or now",
        "since = now",
        "test_operators_pauses.py",
    ),
    Plant(
        "an action that changes nothing is recorded",
        "if not by_policy and not any(entry in self._stored for entry in entries):",
        "if False:",
        "test_operators_pauses.py",
    ),
    Plant(
        "a quorum is free though a majority may have it",
        "if len(good) < alias.need:",
        "if not good:",
        "test_operators_quorums.py",
    ),
    Plant(
        "clear ends the lease on one member",
        "    if status.members:\n        alias = alias_of(status.name, alias)\n",
        "",
        "test_operators_quorums.py",
    ),
    Plant(
        "what is held for a day is not listed",
        "known = [*marked(using=using), *held_since(using=using)]",
        "known = marked(using=using)",
        "test_operators_truth.py",
    ),
    Plant(
        "the index of holders keeps what is free",
        'if since else ("ZREM", quoted)',
        'if since else ("ZADD", 1, quoted)',
        "test_operators_truth.py",
    ),
    Plant(
        "the doctor says ok of what it did not look at",
        "if seen[0] >= seen[1]:",
        "if True:",
        "test_operators_truth.py",
    ),
    Plant(
        "an ambiguous id clears all that begin so",
        "if len(tokens) > 1:",
        "if False:",
        "test_operators_truth.py",
    ),
    Plant(
        "old minutes are folded into the total at once",
        "if quarter == '' and age <= keep then",
        "if false then",
        "test_command_history.py",
    ),
]
