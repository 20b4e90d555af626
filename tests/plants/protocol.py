"""Defects of the scripts and the plans."""

from __future__ import annotations

from .plant import Plant

LOST_KEYS = "test_protocol_lost_keys.py::"
PLANS = "test_protocol_plans.py::"
STATISTICS = "test_protocol_statistics.py::"
SUMS = "test_sums.py::"

PLANTS = [
    Plant(
        "a waiter's lost record stops its name",
        "protocol/lua/functions/hand_over.lua",
        "state == 'w' and deadline_of(name, t, channel)",
        "deadline_of(name, t, channel)",
        (LOST_KEYS + "test_a_waiter_without_a_record_holds_up_nobody",),
    ),
    Plant(
        "an hour's busiest stay",
        "protocol/lua/functions/note_busiest.lua",
        "forget_hours(hour - 1)",
        "forget_hours(hour - 100)",
        (SUMS + "test_old_hours_are_forgotten",),
    ),
    Plant(
        "this hour's busiest go",
        "protocol/lua/functions/note_busiest.lua",
        "forget_hours(hour - 1)",
        "forget_hours(hour + 1)",
        (SUMS + "test_old_hours_are_forgotten",),
    ),
    Plant(
        "shares live for ever",
        "protocol/lua/functions/note_share.lua",
        "  redis.call('PEXPIRE', SHARES, life)\n",
        "",
        (SUMS + "test_what_a_killed_process_had_is_over_when_its_share_is",),
    ),
    Plant(
        "shares of the dead stay",
        "protocol/lua/functions/note_share.lua",
        "<= name.now then redis.call('HDEL', SHARES, all[i]) end",
        "<= 0 then redis.call('HDEL', SHARES, all[i]) end",
        (SUMS + "test_what_a_killed_process_had_is_over_when_its_share_is",),
    ),
    Plant(
        "the mean hold is of this minute alone",
        "protocol/lua/functions/refuse.lua",
        "this .. ':r', last .. ':r')",
        "this .. ':r', this .. ':r')",
        (
            STATISTICS
            + "test_a_refusal_tells_how_long_permits_were_held_in_this_minute_and_the_last",
        ),
    ),
    Plant(
        "the mean hold is of the last minute alone",
        "protocol/lua/functions/refuse.lua",
        "this .. ':r', last .. ':r')",
        "last .. ':r', last .. ':r')",
        (
            STATISTICS
            + "test_a_refusal_tells_how_long_permits_were_held_in_this_minute_and_the_last",
        ),
    ),
    Plant(
        "thinning is not said",
        "protocol/lua/functions/thin_out.lua",
        "  redis.call('HINCRBY', SKETCH, this .. 'off', cut)\n",
        "",
        (SUMS + "test_the_busiest_keys_are_right_within_the_bound_that_is_said",),
    ),
    Plant(
        "thinning raises counts",
        "protocol/lua/functions/thin_out.lua",
        "-cut) <= 0",
        "cut) <= 0",
        (SUMS + "test_the_busiest_keys_are_right_within_the_bound_that_is_said",),
    ),
    Plant(
        "a minute too early is folded",
        "protocol/lua/functions/tidy.lua",
        "minute - keep - 1 do",
        "minute - keep do",
        (STATISTICS + "test_a_minute_is_kept_for_as_long_as_history_is_and_folded_then",),
    ),
    Plant(
        "a minute is folded a minute late",
        "protocol/lua/functions/tidy.lua",
        "minute - keep - 1 do",
        "minute - keep - 2 do",
        (STATISTICS + "test_a_minute_is_kept_for_as_long_as_history_is_and_folded_then",),
    ),
    Plant(
        "a belief in an element counts from its arrival",
        "protocol/plans.py",
        "began = min(answer.received, asked + int(granted) / 1000 - then)",
        "began = answer.received",
        (PLANS + "test_a_late_pop_is_not_believed",),
    ),
    Plant(
        "a failed wait pauses not",
        "protocol/plans.py",
        "                yield Sleep(_BACKOFF[1])\n",
        "",
        (PLANS + "test_a_pop_that_failed_is_asked_about",),
    ),
    Plant(
        "sums stay for ever",
        "protocol/lua/tally.lua",
        "if redis.call('EXISTS', STATS) == 1 then tidy(name) end\n",
        "",
        (SUMS + "test_old_minutes_of_sums_are_folded_and_sums_do_not_stay_for_ever",),
    ),
    Plant(
        "who gave up counts as who gave back",
        "protocol/lua/release.lua",
        "live and 'r' or 't'",
        "'r'",
        (STATISTICS + "test_who_gave_up_waiting_is_counted_as_that",),
    ),
    Plant(
        "a policy's limit comes before a name's own",
        "protocol/lua/functions/heed.lua",
        "name.override = name.override or tonumber(limit)",
        "name.override = tonumber(limit)",
        (
            "test_protocol_scripts.py::"
            "test_the_limit_of_a_name_itself_comes_before_its_policys[release]",
        ),
    ),
    Plant(
        "a peak sinks when the other keys of its name expired",
        "protocol/lua/functions/highest.lua",
        "math.max(used, tonumber(redis.call('HGET', stats, this .. 'p') or 0))",
        "used",
        (STATISTICS + "test_a_peak_outlives_the_other_keys_of_an_idle_name",),
    ),
]
