"""Operators see times in the site's time zone, with USE_TZ and without it."""

from __future__ import annotations

import re
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from django.contrib.admin.models import LogEntry
from django.test import Client

from django_redis_sync import Lock, Semaphore
from django_redis_sync.operators.formats import local
from tests.support.operators import act, as_json, locks
from tests.support.pages import get, get_list

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("clean_redis")]

#: The settings USE_TZ and TIME_ZONE. The zones have no daylight saving time.
SETTINGS = [(True, "Asia/Tokyo"), (False, "Asia/Tokyo"), (False, "America/Phoenix")]
ZONES = pytest.mark.parametrize("zone", SETTINGS, ids=str)
#: Without a TIME_ZONE, Django uses the zone of the system. Django's admin does not work then.
ALL_ZONES = pytest.mark.parametrize("zone", [*SETTINGS, (False, None)], ids=str)
OFFSETS = {"Asia/Tokyo": 9, "America/Phoenix": -7}


@pytest.fixture
def offset(zone: tuple[bool, str | None], settings: Any) -> timedelta:
    """Set the time zone, and return its offset from UTC."""
    settings.USE_TZ, settings.TIME_ZONE = zone
    return timedelta(hours=OFFSETS[zone[1]]) if zone[1] else datetime.now().astimezone().utcoffset()


def clock_of(at: datetime, offset: timedelta) -> str:
    """Return the hour and the minute of a time in the site's zone."""
    return f"{at.astimezone(timezone(offset)):%H:%M}"


@ZONES
def test_admin_pages_show_times_in_the_sites_time_zone(
    offset: timedelta, admin_client: Client
) -> None:
    with Lock("held"), Semaphore("exports", 2):
        since = clock_of(Lock("held").status().holders[0].since, offset)
        locks("pause", "exports", "--for", "1h")
        assert since in get_list(admin_client, "row-held").text
        page = get(admin_client, "held/change/")
        assert since in page.text
        (written,) = {*re.findall(r'<time datetime="([^"]+)"', page.html)}
        assert offset == datetime.fromisoformat(written).utcoffset(), "the page names another zone"
        until = Semaphore("exports", 2).status().paused_until
        assert clock_of(until, offset) in get(admin_client, "exports/change/").text
    get(admin_client, "held/change/?history=24")
    for query in ("data/", "held/data/"):
        assert 200 == admin_client.get(f"/admin/django_redis_sync/name/{query}").status_code
    admin_client.post("/admin/django_redis_sync/name/exports/act/resume/", {"reason": "done"})
    assert 1 == LogEntry.objects.count()
    (action, *_) = as_json("log", "exports")
    at = datetime.fromisoformat(action["at"])
    html = get(admin_client, "exports/history/").html
    written = [*map(datetime.fromisoformat, re.findall(r'<time datetime="([^"]+)"', html))]
    assert (at.replace(microsecond=0), offset) in [
        (one.replace(microsecond=0), one.utcoffset()) for one in written
    ]


@ALL_ZONES
def test_command_shows_times_in_the_sites_time_zone(offset: timedelta) -> None:
    with Lock("held"):
        paused = locks("pause", "held", "--for", "1h")
        until = Lock("held").status().paused_until
        # The command computes the end by the clock of its host, Redis by its own.
        ends = {clock_of(until + timedelta(seconds=n), offset) for n in (-2, 0, 2)}
        assert any(end in paused for end in ends), paused
        assert "Paused for" in locks("status", "held")
        assert clock_of(until, offset) in locks("status", "held")
        assert clock_of(until, offset) in locks("log", "held")
    for words in (["status"], ["history", "held"], ["history", "held", "--since", "1h"]):
        locks(*words)


@ALL_ZONES
def test_times_in_json_have_their_offset_from_utc(offset: timedelta) -> None:
    with Lock("held"):
        found = as_json("status", "held")
    for text in (found["at"], found["names"][0]["holders"][0]["since"]):
        assert datetime.fromisoformat(text).utcoffset() is not None, text


def test_end_of_a_pause_is_a_time_of_the_server_even_if_the_operators_clock_is_wrong(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    wrong = datetime.now(timezone.utc) + timedelta(hours=2)
    monkeypatch.setattr("django_redis_sync.management.commands.locks.now", lambda: wrong)
    output = act("pause", "exports", "--for", "10m")
    until = Semaphore("exports", 2).status().paused_until
    assert until is not None and f"until {local(until):%H:%M:%S} (for 10 min)" in output
