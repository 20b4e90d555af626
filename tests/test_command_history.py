"""`manage.py locks history`: the counters of a name in the last day."""

import json
from typing import Any

import pytest
import redis
from django.conf import settings as django_settings
from django.core.management import CommandError

from django_redis_sync import Semaphore
from django_redis_sync.operators.statistics import past_of
from django_redis_sync.protocol.keys import group_keys, keys_of
from django_redis_sync.protocol.scripts import CONSTANTS
from tests.behaviour.both import eventually
from tests.support.commands import locks
from tests.support.keepers import fresh_keeper, listed  # noqa: F401 - a fixture

pytestmark = pytest.mark.usefixtures("fresh_keeper")
PAIR = CONSTANTS["PAIR"]


@pytest.fixture
def night(raw: redis.Redis) -> int:
    """Write the counters of one minute 10 hours ago and of one 20 hours ago, as scripts do.

    Return the current minute.
    """
    keys = keys_of(django_settings.PREFIX, "exports")
    minute = int(raw.time()[0]) // 60
    fields: dict[str, Any] = {"tidied": minute - 700}
    for ago, times in ((600, 1), (1200, 2)):
        fields[f"{minute - ago}:g"] = 30 * times
        fields[f"{minute - ago}:n"] = 7 * times
        fields[f"{minute - ago}:r"] = (30 * PAIR + 30 * 10_000) * times
        fields[f"{minute - ago}:w"] = (2 * PAIR + 5_000) * times
        fields[f"{minute - ago}:p"] = 3 * times
    fields[f"{minute - 1600}:g"] = 1000
    raw.hset(keys.stats, mapping=fields)
    return minute


@pytest.fixture
def exports(night: int) -> None:
    """Acquire once, so that the script merges the counters of old minutes."""
    with Semaphore("exports", 3):
        eventually(lambda: listed("exports"))


@pytest.mark.usefixtures("exports")
def test_history_of_a_day_has_rows_of_15_minutes(night: int, raw: Any) -> None:
    found = past_of("exports", minutes=1440)
    assert (15, 1440) == (found.step, len(found.rows) * found.step)
    rows = {int(start.timestamp()) // 60: row for start, row in found.rows if row.granted}
    for ago, times in ((600, 1), (1200, 2)):
        row = rows[(night - ago) // 15 * 15]
        assert (30 * times, 7 * times, 3 * times) == (row.granted, row.rejected, row.peak)
        assert (2 * times, 5.0 * times) == (row.waited, row.wait_seconds)
        assert (30 * times, 300.0 * times) == (row.released, row.held_seconds)
    assert 91 + 1000 == found.ever.granted
    stored = raw.hkeys(keys_of(django_settings.PREFIX, "exports").stats)
    assert not {b"%d:g" % (night - ago) for ago in (600, 1200, 1600)} & {*stored}


@pytest.mark.usefixtures("exports")
def test_history_of_two_hours_has_rows_of_one_minute() -> None:
    found = past_of("exports", minutes=120)
    assert (1, 120) == (found.step, len(found.rows))


@pytest.mark.usefixtures("exports")
def test_command_history_shows_the_period_asked_for_and_a_suggestion() -> None:
    text = locks("history", "exports")
    assert "Last 24 h: granted 97, of these after waiting 6" in text
    assert "rejected 21" in text and "It is 3 now." in text
    assert 4 == len(text.partition("\n\n")[2].splitlines())
    text = locks("history", "exports", "--since", "12h")
    assert "Last 12 h: granted 33" in text


@pytest.mark.usefixtures("exports")
def test_command_history_prints_json() -> None:
    found = json.loads(locks("history", "exports", "--since", "1d", "--format", "json"))
    assert ("exports", None, 1440, 15) == tuple(
        found[key] for key in ("name", "key", "minutes", "step_minutes")
    )
    assert 21 == found["total"]["rejected"] == sum(row["rejected"] for row in found["rows"])
    assert found["suggested_limit"] > 3


def test_command_history_of_a_policy_includes_all_keys() -> None:
    with Semaphore("api", 2, key="1"), Semaphore("api", 2, key="2"):
        eventually(lambda: listed("api@1", "api@2"))
        eventually(lambda: "granted 2" in locks("history", "api"))


def test_command_history_fails_for_an_unknown_name_or_without_statistics(settings: Any) -> None:
    with pytest.raises(CommandError, match="Unknown name") as caught:
        locks("history", "exprots")
    assert 3 == caught.value.returncode
    with Semaphore("exports", 3):
        settings.REDIS_SYNC = {**settings.REDIS_SYNC, "STATS": False}
        with pytest.raises(CommandError, match="there is no history"):
            locks("history", "exports")


def test_command_history_shows_how_far_back_it_reaches(settings: Any) -> None:
    settings.REDIS_SYNC = {**settings.REDIS_SYNC, "STATS_HOURS": 2}
    with Semaphore("exports", 3):
        assert "History reaches back 2 h 0 min." in locks("history", "exports")


@pytest.mark.promise(25)
def test_history_of_a_policy_reaches_back_as_far_as_that_of_a_name(raw: redis.Redis) -> None:
    stats = group_keys(django_settings.PREFIX, "api")[2]
    minute = int(raw.time()[0]) // 60
    raw.hset(stats, mapping={"tidied": minute - 700, f"{minute - 600}:g": 30})
    with Semaphore("api", 3, key="42"):
        eventually(lambda: listed("api@42"))
    eventually(lambda: "granted 31" in locks("history", "api"))
