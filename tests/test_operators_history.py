"""The history of names, from the statistics on the server, and suggested limits."""

from __future__ import annotations

import random
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
import redis
from django.conf import settings

from django_redis_sync import Semaphore
from django_redis_sync.operators import history
from django_redis_sync.operators.formats import duration
from django_redis_sync.operators.history import Counters, histories, suggest
from django_redis_sync.protocol.scripts import CONSTANTS

pytestmark = pytest.mark.usefixtures("clean_redis")


def test_history_has_a_row_for_each_minute(raw: redis.Redis) -> None:
    for _ in range(3):
        with Semaphore("h", 2), Semaphore("h", 2):
            assert Semaphore("h", 2).acquire(blocking=False) is None
    (found,) = histories([("h", None)], minutes=10)
    times = [when.timestamp() for when, _ in found.rows]
    assert times == [times[0] + 60 * i for i in range(10)]
    assert (found.total.granted, found.total.released, found.total.rejected) == (6, 6, 3)
    assert found.total.peak == 2
    assert found.ever == found.total
    assert (
        sum(row.granted for _, row in found.rows[-2:]) == 6
    )  # the acquires fall into one minute, or two


def test_counts_before_the_history_appear_only_in_ever(raw: redis.Redis) -> None:
    minute, pair = raw.time()[0] // 60, CONSTANTS["PAIR"]
    fields: dict[str, Any] = {
        f"{minute - 1}:w": 2 * pair + 3000,
        f"{minute - 1}:r": 4 * pair + 10_000,
        f"{minute - 200}:g": 5,
        "total:g": 100,
        "total:w": 7,
        "total:w:ms": 9500,
        "tidied": minute,
    }
    raw.hset(f"{settings.PREFIX}:{{h}}:stats", mapping=fields)
    (found,) = histories([("h", None)])
    assert found.total == Counters(waited=2, wait_seconds=3.0, released=4, held_seconds=10.0)
    assert (found.ever.granted, found.ever.waited, found.ever.wait_seconds) == (105, 9, 12.5)


def test_name_without_history_has_empty_rows(raw: redis.Redis) -> None:
    (found,) = histories([("nobody", None)], minutes=3)
    assert [row for _, row in found.rows] == [Counters()] * 3
    assert found.suggested_limit is None


def minutes(
    *rows: Counters,
    before: Counters = Counters(),  # noqa: B008 - it is frozen
) -> history.History:
    """Return a history with these rows. `before`: the counts of earlier minutes."""
    dated = tuple((FIRST + timedelta(minutes=i), row) for i, row in enumerate(rows))
    total = history.add(rows)
    return history.History("h", None, dated, total, history.add([before, total]), None)


def peaks(found: history.History, *holders: tuple[float, int]) -> list[int]:
    """Return the peaks of `carried`. `holders`: the minute of the grant, and the permits."""
    held = [(FIRST + timedelta(minutes=since), permits) for since, permits in holders]
    return [row.peak for _, row in history.carried(found, held).rows]


NOTHING, FIRST = Counters(), datetime(2026, 1, 1, tzinfo=timezone.utc)


def test_carried_counts_current_leases_in_each_minute_since_their_grant() -> None:
    came = Counters(granted=2, peak=5)
    assert peaks(minutes(NOTHING, came, NOTHING, NOTHING), (1.5, 4), (1.6, 1)) == [0, 5, 5, 5]
    # The lease was granted before the first minute, without counters.
    assert peaks(minutes(NOTHING, NOTHING), (-90, 3)) == [3, 3]
    assert peaks(minutes(NOTHING, NOTHING)) == [0, 0]


def test_carried_counts_released_leases_until_their_release() -> None:
    came, left = Counters(granted=1, peak=1), Counters(released=1, held_seconds=180)
    assert peaks(minutes(NOTHING, came, NOTHING, NOTHING, left, NOTHING)) == [0, 1, 1, 1, 1, 0]
    # The lease was granted before the first minute.
    assert peaks(minutes(NOTHING, left, NOTHING, before=came)) == [1, 1, 0]
    # One lease was granted and another was released in the same minute.
    both = Counters(granted=1, released=1, peak=2)
    assert peaks(minutes(came, NOTHING, both, NOTHING), (2.5, 1)) == [1, 1, 2, 1]
    # A handoff counts as waited.
    waited = Counters(waited=1, released=1, peak=1)
    assert peaks(minutes(came, waited, NOTHING, left)) == [1, 1, 1, 1]


def test_carried_counts_a_lease_with_unknown_end_only_when_granted() -> None:
    came = Counters(granted=1, peak=1)
    # The lease was cleared or expired at an unknown time.
    assert peaks(minutes(came, NOTHING, NOTHING)) == [1, 0, 0]
    assert peaks(minutes(came, NOTHING, Counters(reclaimed=1))) == [1, 0, 0]
    # The release is counted while its lease is still listed as current.
    assert peaks(minutes(NOTHING, came, Counters(released=1)), (1.5, 1)) == [0, 1, 1]
    for over in (Counters(granted=1, reclaimed=1), Counters(granted=1, released=1)):
        rows = replace(over, peak=1), NOTHING, Counters(released=1)
        assert peaks(minutes(*rows)) == [1, 0, 0]
    # The counters were switched on between the grant and the release.
    assert peaks(minutes(NOTHING, Counters(released=1), NOTHING)) == [0, 0, 0]


@pytest.mark.parametrize("lost", [0.0, 0.4], ids=["all released", "some expired"])
def test_carried_use_is_exact_unless_leases_expired_and_never_too_high(lost: float) -> None:
    for seed in range(40):
        carried, actual = _carried_and_actual(random.Random(seed), lost)
        assert carried == actual if not lost else all(map(int.__le__, carried, actual)), seed


def _carried_and_actual(chance: random.Random, lost: float) -> tuple[list[int], list[int]]:
    """Return the use by random leases at the start of each minute: from `carried`, and the actual
    use. `lost`: the share of leases that expire, so that no counter records their end."""
    leases = [(come := chance.uniform(-3, 6), come + chance.expovariate(0.5)) for _ in range(9)]
    expired = {lease for lease in leases if chance.random() < lost}
    living = [(come, chance.randint(1, 3)) for come, left in leases if left >= 6]
    permits = dict(living)

    def counted(start: int, stop: int) -> Counters:
        came = sum(start <= come < stop for come, _ in leases)
        left = sum(start <= lease[1] < stop for lease in leases if lease not in expired)
        return Counters(granted=came, released=left)

    rows = [counted(minute, minute + 1) for minute in range(6)]
    in_use = [
        sum(permits.get(come, 1) for come, end in leases if come < minute <= end)
        for minute in range(6)
    ]
    return peaks(minutes(*rows, before=counted(-9, 0)), *living), in_use


def test_carried_use_counts_for_the_peak_and_the_suggested_limit() -> None:
    crowd = Counters(rejected=50, released=1, held_seconds=6, granted=1, peak=1)
    found = history.carried(minutes(NOTHING, crowd), [(FIRST - timedelta(hours=2), 4)])
    assert (found.total.peak, found.suggested_limit) == (4, 8)


MANY = {"granted": 60, "released": 120, "held_seconds": 240.0}


@pytest.mark.promise(22)
@pytest.mark.parametrize(
    ("row", "limit"),
    [
        # 2 per second, each for 2 s: 4 at a time, and 2 for bursts.
        (Counters(**MANY, waited=60, peak=2), 6),
        (Counters(**MANY, timed_out=60, peak=2), 6),
        (Counters(**MANY, rejected=60, peak=2), 6),
        # The demand is below the peak: the peak plus one.
        (Counters(**MANY, waited=60, peak=9), 10),
        # Shadow mode admits every request: the peak.
        (Counters(**MANY, shadow_rejected=30, peak=2), 2),
        (Counters(**MANY, waited=60, peak=1), None),  # a lock
        (Counters(**MANY, peak=2), None),  # no request waited
        (Counters(granted=60, waited=60, peak=2), None),  # how long they hold is unknown
        (Counters(granted=198, waited=2, released=200, held_seconds=240.0, peak=2), 6),
        (Counters(granted=199, waited=1, released=200, held_seconds=240.0, peak=2), None),  # rare
        (Counters(), None),
    ],
)
def test_suggest_needs_evidence_of_a_limit_that_was_too_small(
    row: Counters, limit: int | None
) -> None:
    assert limit == suggest([row])[0] == suggest([row, Counters()])[0]


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (-1.0, "0 ms"),
        (0.0154, "15 ms"),
        (1.0, "1.0 s"),
        (9.94, "9.9 s"),
        (10.0, "10 s"),
        (59.9, "59 s"),
        (60.0, "1 min 0 s"),
        (3600.0, "1 h 0 min"),
        (86399.0, "23 h 59 min"),
        (180000.0, "2 d 2 h"),
        (float("inf"), "forever"),
    ],
)
def test_duration_has_the_two_largest_units(seconds: float, text: str) -> None:
    assert text == duration(seconds)
