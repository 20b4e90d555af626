"""Defects of what operators read and do."""

from __future__ import annotations

from .plant import Plant

METRICS = "test_metrics.py::"
FIGURES = "test_operators_figures.py::"
LOOKS = "test_operators_looks.py::"
USING = "test_operators_using.py::"

PLANTS = [
    Plant(
        "metrics: events of the sums are those of the plain name",
        "metrics.py",
        "    if sums is not None:\n"
        '        _add(families["events"], families["seconds"], name, sums.ever)',
        "    if sums is not None and plain:\n"
        '        _add(families["events"], families["seconds"], name, plain[0])',
        (METRICS + "test_the_events_of_a_policy_are_its_sums",),
    ),
    Plant(
        "metrics: ever is the last minute",
        "metrics.py",
        '_add(families["events"], families["seconds"], name, sums.ever)',
        '_add(families["events"], families["seconds"], name, minute)',
        (METRICS + "test_the_events_of_a_policy_are_its_sums",),
    ),
    Plant(
        "a clear that cleared none is recorded",
        "operators/actions.py",
        "    if ids:\n        said",
        "    if True:\n        said",
        (USING + "test_what_had_ended_by_itself_is_not_recorded_as_cleared",),
    ),
    Plant(
        "a clear's record ignores using",
        "operators/actions.py",
        'record("clear", status.name, status.key, using, **said)',
        'record("clear", status.name, status.key, None, **said)',
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
        "acts on the whole policy are not those of its key",
        "operators/audit.py",
        "act.key in (None, key)",
        "act.key == key",
        (USING + "test_acts_on_a_policy_are_those_of_its_keys_too",),
    ),
    Plant(
        "a resized name is no mark",
        "operators/doctor/neighbours.py",
        "(s.paused or s.override is not None)]",
        "s.paused]",
        (LOOKS + "test_the_marks_of_a_policy_are_said_once_and_not_of_each_key",),
    ),
    Plant(
        "marks are repeated for each child",
        "operators/doctor/neighbours.py",
        "[s for s in found if s.key is None and (s.paused or s.override is not None)]",
        "[s for s in found if s.paused or s.override is not None]",
        (LOOKS + "test_the_marks_of_a_policy_are_said_once_and_not_of_each_key",),
    ),
    Plant(
        "Redis 10 is older than 6",
        "operators/doctor/servers.py",
        'version = tuple(int(part) for part in text.split(".")[:2])\n'
        "    except ValueError:\n"
        "        version = OLDEST_VERSION\n"
        "    old = version < OLDEST_VERSION",
        "version = text\n"
        "    except ValueError:\n"
        "        version = OLDEST_VERSION\n"
        "    old = version < '6.2'",
        (LOOKS + "test_a_version_is_compared_by_its_numbers",),
    ),
    Plant(
        "Redis 6.0 is new enough",
        "operators/doctor/servers.py",
        "OLDEST_VERSION = (6, 2)",
        "OLDEST_VERSION = (6, 0)",
        (LOOKS + "test_a_version_is_compared_by_its_numbers",),
    ),
    Plant(
        "the heaviest are not compared",
        "operators/listing.py",
        "units = list(dict.fromkeys([*heavy, *units]))[:MOST_COMPARED]",
        "units = units[:MOST_COMPARED]",
        (FIGURES + "test_the_heaviest_are_compared_first",),
    ),
    Plant(
        "a chunk of names is missed",
        "operators/names.py",
        "start, start + CHUNK - 1)\n        start += CHUNK",
        "start, start + CHUNK - 2)\n        start += CHUNK",
        (METRICS + "test_a_real_scrape_shows_use_and_events",),
    ),
    Plant(
        "a group's use is that of the sums alone",
        "operators/names.py",
        "return max(self.sums.in_use if self.sums else 0, sum(s.in_use for s in self.all))",
        "return self.sums.in_use if self.sums else sum(s.in_use for s in self.all)",
        (FIGURES + "test_of_sums_and_of_what_was_read_the_larger_counts",),
    ),
    Plant(
        "a name only paused is unused",
        "operators/status.py",
        "self.waiting or self.paused or self.override)",
        "self.waiting)",
        (FIGURES + "test_a_name_is_used_when_anything_of_it_is_there",),
    ),
    Plant(
        "a name only waited for is unused",
        "operators/status.py",
        "bool(self.fence or self.holding or self.waiting or",
        "bool(self.fence or self.holding or",
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
        "holds are waits",
        "operators/sums.py",
        'held=_quantiles(sketch, "r")',
        'held=_quantiles(sketch, "w")',
        (FIGURES + "test_sums_name_what_is_theirs",),
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
]
