"""Defects of what operators read and do."""

from __future__ import annotations

from .plant import Plant

METRICS = "test_metrics.py::"
FIGURES = "test_operators_figures.py::"
LOOKS = "test_operators_looks.py::"
USING = "test_operators_using.py::"

PLANTS = [
    Plant(
        "metrics: the minute that is not over",
        "metrics.py",
        "h.rows[0][1] for h in histories",
        "h.rows[1][1] for h in histories",
        (METRICS + "test_each_event_of_a_name_has_its_own_value",),
    ),
    Plant(
        "metrics: waiting is in use",
        "metrics.py",
        'families["waiting"].add_metric(label, group.waiting)',
        'families["waiting"].add_metric(label, group.in_use)',
        (METRICS + "test_the_present_of_a_name_is_told_apart",),
    ),
    Plant(
        "a clear ignores using",
        "operators/actions.py",
        "for one, reply in zip(chosen, _run(steps, using), strict=True):",
        "for one, reply in zip(chosen, _run(steps, None), strict=True):",
        (USING + "test_each_act_takes_effect_and_is_recorded_there_alone",),
    ),
    Plant(
        "an act's record ignores using",
        "operators/actions.py",
        "record(how, name, key, using, by=by or person(), reason=reason, limit=value)",
        "record(how, name, key, None, by=by or person(), reason=reason, limit=value)",
        (USING + "test_each_act_takes_effect_and_is_recorded_there_alone",),
    ),
    Plant(
        "acts within a second are in any order",
        "operators/audit.py",
        "now = int(seconds) * 1000 + int(micros) / 1000",
        "now = int(seconds) * 1000",
        (USING + "test_each_act_takes_effect_and_is_recorded_there_alone",),
    ),
    Plant(
        "acts of a key are all of the policy",
        "operators/audit.py",
        "(act.name == name and (key is None or act.key in (None, key)))",
        "act.name == name",
        (USING + "test_acts_on_a_policy_are_those_of_its_keys_too",),
    ),
    Plant(
        "marks are repeated for each child",
        "operators/doctor/neighbours.py",
        "[s for s in found if s.key is None and (s.paused or s.override is not None)]",
        "[s for s in found if s.paused or s.override is not None]",
        (LOOKS + "test_the_marks_of_a_policy_are_said_once_and_not_of_each_key",),
    ),
    Plant(
        "a resized name is no mark",
        "operators/doctor/neighbours.py",
        "(s.paused or s.override is not None)]",
        "s.paused]",
        (LOOKS + "test_the_marks_of_a_policy_are_said_once_and_not_of_each_key",),
    ),
    Plant(
        "a server slow by a tenth is fine",
        "operators/doctor/servers.py",
        "MOST_OFFSET, SLOW, TOO_SLOW = 1.0, 0.01, 0.1",
        "MOST_OFFSET, SLOW, TOO_SLOW = 1.0, 1.0, 10.0",
        (LOOKS + "test_the_median_of_some_round_trips_tells_how_slow_a_server_is",),
    ),
    Plant(
        "a clock a minute off is fine",
        "operators/doctor/servers.py",
        "MOST_OFFSET, SLOW, TOO_SLOW = 1.0, 0.01, 0.1",
        "MOST_OFFSET, SLOW, TOO_SLOW = 100.0, 0.01, 0.1",
        (LOOKS + "test_a_clock_may_be_off_by_a_second_either_way",),
    ),
    Plant(
        "ever forgets what was folded",
        "operators/history.py",
        "ever = add([*parsed.values(), _totals(folded)])",
        "ever = add([*parsed.values()])",
        (FIGURES + "test_a_count_and_its_milliseconds_are_taken_apart",),
    ),
    Plant(
        "kept leases are carried on",
        "operators/history.py",
        'for h in s.holders if h.state != "kept"]',
        "for h in s.holders]",
        (FIGURES + "test_a_lease_that_is_kept_after_its_release_is_carried_on_no_more",),
    ),
    Plant(
        "the heaviest are not compared",
        "operators/listing.py",
        "units = list(dict.fromkeys([*heavy, *units]))[:MOST_COMPARED]",
        "units = units[:MOST_COMPARED]",
        (FIGURES + "test_the_heaviest_are_compared_first",),
    ),
    Plant(
        "the youngest hold is the oldest",
        "operators/listing.py",
        "return -oldest.timestamp() if oldest else -math.inf",
        "return oldest.timestamp() if oldest else -math.inf",
        (FIGURES + "test_each_figure_puts_the_largest_first",),
    ),
    Plant(
        "a chunk of names is missed",
        "operators/names.py",
        "start, start + CHUNK - 1)\n        start += CHUNK",
        "start, start + CHUNK - 2)\n        start += CHUNK",
        (USING + "test_a_registry_of_several_chunks_is_read_whole",),
    ),
    Plant(
        "a group's use is that of the sums alone",
        "operators/names.py",
        "return max(self.sums.in_use if self.sums else 0, sum(s.in_use for s in self.all))",
        "return self.sums.in_use if self.sums else sum(s.in_use for s in self.all)",
        (FIGURES + "test_of_sums_and_of_what_was_read_the_larger_counts",),
    ),
    Plant(
        "a kept lease is held",
        "operators/status.py",
        '{"g": "handed", "k": "kept"}',
        '{"g": "handed"}',
        (FIGURES + "test_what_a_server_says_of_a_name_is_told_apart",),
    ),
    Plant(
        "a name only paused is unused",
        "operators/status.py",
        "self.waiting or self.paused or self.override)",
        "self.waiting)",
        (FIGURES + "test_a_name_is_used_when_anything_of_it_is_there",),
    ),
    Plant(
        "a dead process's share counts",
        "operators/sums.py",
        "        if whole(deadline) <= now:\n            continue\n",
        "",
        (FIGURES + "test_the_shares_of_living_processes_are_added_up",),
    ),
    Plant(
        "a quantile in milliseconds",
        "operators/sums.py",
        "float(2**bucket) / 1000",
        "float(2**bucket)",
        (FIGURES + "test_durations_are_told_by_upper_bounds",),
    ),
    Plant(
        "a day's hours",
        "operators/words.py",
        '"h": whole % 86400 // 3600',
        '"h": whole // 3600',
        (FIGURES + "test_a_time_span_is_told_by_its_two_largest_units",),
    ),
    Plant(
        "an hour of 59 seconds",
        "operators/words.py",
        "if whole < 60:",
        "if whole < 59:",
        (FIGURES + "test_a_time_span_is_told_by_its_two_largest_units",),
    ),
    Plant(
        "a look that fails is another's",
        "operators/doctor/servers.py",
        '    "latency": _latency,',
        '    "speed": _latency,',
        (LOOKS + "test_a_look_that_fails_is_a_finding_under_the_looks_own_id",),
    ),
    Plant(
        "machines are not told since when one waits",
        "operators/export.py",
        '        "since": w.since.isoformat(),\n',
        "",
        (FIGURES + "test_holders_and_waiters_are_told_to_machines",),
    ),
    Plant(
        "keys are looked for in another alias",
        "operators/listing.py",
        "counts = count_keys(names, using=using)",
        "counts = count_keys(names)",
        (USING + "test_all_that_is_read_is_read_there",),
    ),
]
