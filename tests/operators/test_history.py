"""`manage.py locks history`: the history of a name, its peaks, and a suggested limit. All of them
are computed from counters in Redis."""

from __future__ import annotations

import random
from datetime import datetime
from typing import Any

import pytest
import redis
from django.conf import settings

from django_redis_sync import Semaphore
from tests.behaviour.both import eventually
from tests.support.operators import as_json, failed, locks
from tests.support.renewers import fresh_renewer, listed  # noqa: F401 - a fixture
from tests.support.screens import rows

pytestmark = pytest.mark.usefixtures("fresh_renewer")
STATS, LEASES, INFO = (f"{settings.PREFIX}:{{h}}:{part}" for part in ("stats", "leases", "info"))
PAIR = 2**40  # Redis stores a count and a sum of ms as one number: count * PAIR + ms
ABOUT = ("name", "key", "minutes", "step_minutes")


def recent() -> dict[str, Any]:
    """Return what `locks status` shows of the name "h", with its counters of the last hour."""
    (found,) = as_json("status", "h")["names"]
    return dict(found)


def write(raw: redis.Redis, rows: dict[int, dict[str, int]]) -> int:
    """Write the counters of the name "h". `rows`: for each minute, the counters by event. Minute 0
    is 20 minutes ago. Earlier minutes are negative. Return minute 0 as minutes since 1970."""
    first = int(raw.time()[0]) // 60 - 20
    fields = {f"{first + at}:{what}": n for at, row in rows.items() for what, n in row.items()}
    raw.delete(STATS)
    raw.hset(STATS, mapping={"tidied": first, **fields})
    return first


def test_history_has_one_row_for_each_minute_in_which_something_happened(raw: redis.Redis) -> None:
    for _ in range(3):
        with Semaphore("h", 2), Semaphore("h", 2):
            assert Semaphore("h", 2).acquire(blocking=False) is None
    found = as_json("history", "h", "--since", "10m")
    assert (10, 1, 2) == (found["minutes"], found["step_minutes"], found["total"]["peak"])
    total = [found["total"][what] for what in ("granted", "released", "skipped")]
    assert [6, 6, 3] == total
    for what, count in zip(("granted", "released", "skipped"), total, strict=True):
        assert count == sum(row[what] for row in found["rows"])
    assert 1 <= len(found["rows"]) <= 2, "the acquires fall into one minute, or two"
    shown = recent()
    assert shown["ever"] == {key: shown["recent"][key] for key in shown["ever"]}


def test_status_has_the_counts_of_the_last_hour_and_of_all_time(raw: redis.Redis) -> None:
    write(raw, {18: {"w": 2 * PAIR + 3000, "r": 4 * PAIR + 10_000}, -200: {"g": 5}})
    raw.hset(STATS, mapping={"total:g": 100, "total:w": 7, "total:w:ms": 9500, "foreign": "x"})
    found = recent()
    nonzero = {key: value for key, value in found["recent"].items() if value}
    expected = {"minutes": 60, "waited": 2, "wait_seconds": 3.0, "released": 4, "peak": 2}
    assert {**expected, "held_seconds": 10.0} == nonzero
    ever = [found["ever"][what] for what in ("granted", "waited", "wait_seconds")]
    assert [105, 9, 12.5] == ever


def peaks(raw: redis.Redis, rows: dict[int, dict[str, int]], *holders: tuple[float, int]) -> Any:
    """Write counters and current leases of the name "h". Return its peaks in the minutes 0 to 9.

    `rows`: for each minute, the counters by event. Minute 0 is 20 minutes ago. `holders`: for each
    lease, the minute of its grant, and its number of permits."""
    raw.delete(LEASES, INFO)
    first = write(raw, rows)
    for n, (minute, permits) in enumerate(holders):
        raw.zadd(LEASES, {f"token-{n}": "inf"})
        fence = round((first + minute) * 60e6) + n
        raw.hset(INFO, f"token-{n}", f"h {fence} inf {permits} 99 - {{}}")
    found = as_json("history", "h", "--since", "30m")["rows"]
    at = {int(datetime.fromisoformat(row["at"]).timestamp()) // 60 - first: row for row in found}
    return [at[minute]["peak"] if minute in at else 0 for minute in range(10)]


ONE = {"g": 1, "p": 1}
LEFT = {"r": PAIR + 180_000}


@pytest.mark.parametrize(
    ("rows", "holders", "expected"),
    [
        # Current leases count from their grant on, even if no counter recorded the grant.
        ({1: {"g": 2, "p": 5}}, [(1.5, 4), (1.6, 1)], [0, 5, 5, 5, 5, 5, 5, 5, 5, 5]),
        ({}, [(-90, 3)], [3] * 10),
        # A released lease counts until its release, also if it was granted before the period.
        ({1: ONE, 4: LEFT}, [], [0, 1, 1, 1, 1]),
        ({-25: ONE, 1: LEFT}, [], [1, 1]),
        # One lease was granted and another released in the same minute.
        ({0: ONE, 2: {"g": 1, **LEFT, "p": 2}}, [(2.5, 1)], [1, 1, 2, 1, 1, 1, 1, 1, 1, 1]),
        # Other letters for a grant: w after a wait, and s if only shadow mode granted it.
        ({0: ONE, 1: {"w": PAIR, **LEFT, "p": 1}, 3: LEFT}, [], [1, 1, 1, 1]),
        ({0: {"s": 1, "p": 1}, 3: LEFT}, [], [1, 1, 1, 1]),
        # A lease that was cleared or has expired counts only in the minute of its grant.
        ({0: ONE}, [], [1]),
        ({0: ONE, 2: {"c": 1}}, [], [1]),
        ({0: {**ONE, "c": 1}, 2: LEFT}, [], [1]),
        ({0: {**ONE, **LEFT}, 2: LEFT}, [], [1]),
        # The counters were switched on after the grant, so they contain only the release.
        ({1: LEFT}, [], []),
    ],
    ids=str,
)
def test_peak_of_a_minute_includes_permits_granted_in_an_earlier_minute(
    raw: redis.Redis, rows: Any, holders: Any, expected: list[int]
) -> None:
    assert expected + [0] * (10 - len(expected)) == peaks(raw, rows, *holders)


@pytest.mark.parametrize("lost", [0.0, 0.4], ids=["all released", "some expired"])
def test_peaks_in_the_history_never_exceed_the_permits_that_were_in_use(
    raw: redis.Redis, lost: float
) -> None:
    """`lost`: the fraction of leases that expire. No counter records the end of such a lease."""
    for seed in range(40):
        chance = random.Random(seed)
        leases = [
            (came := chance.uniform(-3, 6), came + chance.expovariate(0.5), chance.randint(1, 3))
            for _ in range(9)
        ]
        leases = [(came, end, permits if end >= 10 else 1) for came, end, permits in leases]
        counted = [lease for lease in leases if chance.random() >= lost]
        rows = {
            minute: {
                "g": sum(minute <= came < minute + 1 for came, _, _ in leases),
                "r": PAIR * sum(minute <= end < minute + 1 for _, end, _ in counted),
            }
            for minute in range(-30, 10)
        }
        living = [(came, permits) for came, end, permits in leases if end >= 10]
        found = peaks(raw, rows, *living)
        in_use = [sum(p for came, end, p in leases if came < m <= end) for m in range(10)]
        assert found == in_use if not lost else all(map(int.__le__, found, in_use)), seed


MANY = {"g": 60, "r": 120 * PAIR + 240_000}


@pytest.mark.promise(22)
@pytest.mark.parametrize(
    ("row", "limit", "is_estimate"),
    [
        # 2 requests per second hold for 2 s each, so 4 hold at a time. The suggestion adds 2 for
        # bursts.
        ({**MANY, "w": 60 * PAIR, "p": 2}, 6, True),
        ({**MANY, "t": 60, "p": 2}, 6, True),
        ({**MANY, "n": 60, "p": 2}, 6, True),
        # If the demand is below the peak, the suggestion is the peak plus one.
        ({**MANY, "w": 60 * PAIR, "p": 9}, 10, True),
        # Shadow mode admits every request. So the suggested limit is the peak of permits in use.
        ({**MANY, "s": 30, "p": 2}, 2, False),
        ({**MANY, "w": 60 * PAIR, "p": 1}, None, False),  # a name with a peak of 1 may be a lock
        ({**MANY, "p": 2}, None, False),  # no request waited
        ({**MANY, "n": 60, "b": 60, "p": 2}, None, False),  # share_limit caused all rejections
        ({"g": 60, "w": 60 * PAIR, "p": 2}, None, False),  # no lease was released
        ({"g": 198, "w": 2 * PAIR, "r": 200 * PAIR + 240_000, "p": 2}, 6, True),
        # Too few requests waited.
        ({"g": 199, "w": 1 * PAIR, "r": 200 * PAIR + 240_000, "p": 2}, None, False),
    ],
    ids=str,
)
def test_limit_is_suggested_only_when_enough_requests_found_no_free_permit(
    raw: redis.Redis, row: dict[str, int], limit: int | None, is_estimate: bool
) -> None:
    write(raw, {10: row})
    found = recent()
    about = found["suggested_limit"], found["suggested_limit_is_estimate"]
    assert (limit, is_estimate) == about


def test_suggested_limit_considers_permits_granted_in_an_earlier_minute(raw: redis.Redis) -> None:
    crowd = {"n": 50, "r": PAIR + 6000, "g": 1, "p": 1}
    peaks(raw, {9: crowd}, (-120, 4))
    assert (4, 8) == (recent()["recent"]["peak"], recent()["suggested_limit"])
    assert "a limit of at least 8 was needed.\n" in locks("status", "h"), "its limit is unknown"


def test_history_shows_durations_of_a_minute_or_more_in_at_most_two_units(raw: redis.Redis) -> None:
    texts = {0.0154: "15 ms", 1.0: "1.0 s", 9.94: "9.9 s", 10.0: "10 s", 59.9: "59 s"}
    texts |= {60.0: "1 min", 61.0: "1 min 1 s", 3600.0: "1 h", 7260.0: "2 h 1 min"}
    texts |= {86399.0: "23 h 59 min", 172800.0: "2 d", 180000: "2 d 2 h"}
    for seconds, text in texts.items():
        write(raw, {10: {"g": 1, "w": PAIR + round(seconds * 1000)}})
        assert f"after a wait of {text} on average" in locks("history", "h")


# The command


@pytest.fixture
def night(raw: redis.Redis) -> int:
    """Write counters for three minutes: 10, 20, and 27 hours ago. Acquire once, so that the script
    adds up the counters of old minutes. Return the current minute, counted from 1970."""
    minute = int(raw.time()[0]) // 60
    fields: dict[str, Any] = {"tidied": minute - 700, f"{minute - 1600}:g": 1000}
    for ago, times in ((600, 1), (1200, 2)):
        fields[f"{minute - ago}:g"] = 30 * times
        fields[f"{minute - ago}:n"] = 7 * times
        fields[f"{minute - ago}:r"] = (30 * PAIR + 30 * 10_000) * times
        fields[f"{minute - ago}:w"] = (2 * PAIR + 5_000) * times
        fields[f"{minute - ago}:p"] = 3 * times
    raw.hset(f"{settings.PREFIX}:{{exports}}:stats", mapping=fields)
    with Semaphore("exports", 3):
        eventually(lambda: listed("exports"))
    return minute


def test_history_of_a_day_has_rows_of_15_minutes(night: int, raw: Any) -> None:
    found = as_json("history", "exports", "--since", "1d")
    assert ("exports", None, 1440, 15) == (*map(found.get, ABOUT),)
    by_time = {row["at"][11:16]: row for row in found["rows"] if row["rejected"]}
    for ago, times in ((600, 1), (1200, 2)):
        hour, minute = divmod((night - ago) // 15 * 15 % 1440, 60)
        row = by_time[f"{hour:02}:{minute:02}"]
        assert (30 * times, 7 * times, 3 * times) == (row["granted"], row["rejected"], row["peak"])
        assert (2 * times, 5.0 * times) == (row["waited"], row["wait_seconds"])
        assert (30 * times, 300.0 * times) == (row["released"], row["held_seconds"])
    assert 21 == found["total"]["rejected"]
    assert found["suggested_limit"] > 3
    assert 91 + 1000 == as_json("status", "exports")["names"][0]["ever"]["granted"]
    stored = raw.hkeys(f"{settings.PREFIX}:{{exports}}:stats")
    assert not {b"%d:g" % (night - ago) for ago in (600, 1200, 1600)} & {*stored}
    found = as_json("history", "exports", "--since", "2h")
    assert ("exports", None, 120, 1) == (*map(found.get, ABOUT),)


def test_row_of_15_minutes_has_the_sums_of_its_minutes_and_the_highest_peak(
    night: int, raw: Any
) -> None:
    start = (night - 30) // 15 * 15
    fields = {f"{start}:g": 4, f"{start}:p": 3, f"{start + 1}:g": 5, f"{start + 1}:p": 2}
    raw.hset(f"{settings.PREFIX}:{{exports}}:stats", mapping=fields)
    at = f"{start % 1440 // 60:02}:{start % 60:02}"
    found = as_json("history", "exports", "--since", "1d")["rows"]
    rows_then = [row for row in found if row["at"][11:16] == at]
    assert [(9, 3)] == [(row["granted"], row["peak"]) for row in rows_then]


def test_history_shows_the_requested_period_and_a_suggested_limit(night: int) -> None:
    text = locks("history", "exports")
    assert "Last 24 h: granted 97, 6 of these after a wait of 2.5 s on average" in text
    assert "held 9.9 s on average, at most 6 in use.\n" in text
    assert "Trouble: rejected 21.\n" in text
    assert "a limit of at least 7 was needed. The limit is 3 now.\n" in text
    twenty_hours_ago, ten_hours_ago, _now = rows(text)
    columns = ("AT ONCE", "WAITED", "REJECTED", "MEAN WAIT", "IN USE")
    assert ["60", "4", "14", "2.5 s", "6"] == [twenty_hours_ago[title] for title in columns]
    assert ["30", "2", "7", "2.5 s", "3"] == [ten_hours_ago[title] for title in columns]
    assert "Last 12 h: granted 33" in locks("history", "exports", "--since", "12h")
    assert "Last 90 min: granted 1" in locks("history", "exports", "--since", "90m")


def test_history_of_a_policy_includes_the_events_of_all_its_keys(raw: redis.Redis) -> None:
    minute = int(raw.time()[0]) // 60
    sums = f"{settings.PREFIX}:{{api}}:sums"
    raw.hset(sums, mapping={"tidied": minute - 700, f"{minute - 600}:g": 30})
    with Semaphore("api", 2, key="1"), Semaphore("api", 2, key="2"):
        eventually(lambda: listed("api@1", "api@2"))
        eventually(lambda: "granted 32" in locks("history", "api"))
        assert "granted 1," in locks("history", "api", "--key", "1")


def test_history_command_says_how_far_back_the_history_reaches(settings: Any) -> None:
    with Semaphore("exports", 3):
        settings.REDIS_SYNC = {**settings.REDIS_SYNC, "STATS_HOURS": 2}
        assert "History reaches back 2 h." in locks("history", "exports")
        settings.REDIS_SYNC = {**settings.REDIS_SYNC, "STATS": False}
        error = "REDIS_SYNC['STATS'] is off: there is no history."
        assert (1, error) == failed("history", "exports")
