"""`manage.py locks history`: the counters of a name in the last day."""

from typing import Any

import pytest
import redis
from django.conf import settings as django_settings

from django_redis_sync import Semaphore
from tests.behaviour.both import eventually
from tests.support.keepers import fresh_keeper, listed  # noqa: F401 - a fixture
from tests.support.operators import as_json, failed, locks
from tests.support.screens import rows

pytestmark = pytest.mark.usefixtures("fresh_keeper")
PAIR = 2**40  # a counter and a sum of ms are one number
ABOUT = ("name", "key", "minutes", "step_minutes")


@pytest.fixture
def night(raw: redis.Redis) -> int:
    """Write the counters of one minute 10 hours ago and of one 20 hours ago, as scripts do. Then
    acquire once, so that the script merges the counters of old minutes. Return the current minute.
    """
    minute = int(raw.time()[0]) // 60
    fields: dict[str, Any] = {"tidied": minute - 700, f"{minute - 1600}:g": 1000}
    for ago, times in ((600, 1), (1200, 2)):
        fields[f"{minute - ago}:g"] = 30 * times
        fields[f"{minute - ago}:n"] = 7 * times
        fields[f"{minute - ago}:r"] = (30 * PAIR + 30 * 10_000) * times
        fields[f"{minute - ago}:w"] = (2 * PAIR + 5_000) * times
        fields[f"{minute - ago}:p"] = 3 * times
    raw.hset(f"{django_settings.PREFIX}:{{exports}}:stats", mapping=fields)
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
    stored = raw.hkeys(f"{django_settings.PREFIX}:{{exports}}:stats")
    assert not {b"%d:g" % (night - ago) for ago in (600, 1200, 1600)} & {*stored}
    found = as_json("history", "exports", "--since", "2h")
    assert ("exports", None, 120, 1) == (*map(found.get, ABOUT),)


def test_history_shows_the_requested_period_and_a_suggested_limit(night: int) -> None:
    text = locks("history", "exports")
    assert "Last 24 h: granted 97, of these after waiting 6 (2.5 s on average)" in text
    assert "held 9.9 s on average, at most 6 in use.\n" in text
    assert "Trouble: rejected 21.\n" in text
    assert "a limit of at least 7 was needed. It is 3 now.\n" in text
    twenty_hours_ago, ten_hours_ago, _now = rows(text)
    columns = ("AT ONCE", "WAITED", "REJECTED", "MEAN WAIT", "IN USE")
    assert ["60", "4", "14", "2.5 s", "6"] == [twenty_hours_ago[title] for title in columns]
    assert ["30", "2", "7", "2.5 s", "3"] == [ten_hours_ago[title] for title in columns]
    assert "Last 12 h: granted 33" in locks("history", "exports", "--since", "12h")
    assert "Last 90 min: granted 1" in locks("history", "exports", "--since", "90m")


def test_history_of_a_policy_includes_all_keys_and_earlier_hours(raw: redis.Redis) -> None:
    minute = int(raw.time()[0]) // 60
    sums = f"{django_settings.PREFIX}:{{api}}:sums"
    raw.hset(sums, mapping={"tidied": minute - 700, f"{minute - 600}:g": 30})
    with Semaphore("api", 2, key="1"), Semaphore("api", 2, key="2"):
        eventually(lambda: listed("api@1", "api@2"))
        eventually(lambda: "granted 32" in locks("history", "api"))
        assert "granted 1," in locks("history", "api", "--key", "1")


def test_history_shows_its_start_or_that_there_is_no_history(settings: Any) -> None:
    with Semaphore("exports", 3):
        settings.REDIS_SYNC = {**settings.REDIS_SYNC, "STATS_HOURS": 2}
        assert "History reaches back 2 h 0 min." in locks("history", "exports")
        settings.REDIS_SYNC = {**settings.REDIS_SYNC, "STATS": False}
        error = "REDIS_SYNC['STATS'] is off: there is no history."
        assert (1, error) == failed("history", "exports")
