"""Pauses: their start and end, and repeated actions, which change nothing."""

import time
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta, timezone

import pytest
import redis
from django.conf import settings
from django.core.management import CommandError

from django_redis_sync import Lock, Semaphore
from django_redis_sync.operators import actions
from django_redis_sync.operators.names import marked
from django_redis_sync.operators.status import status_of
from tests.behaviour.both import eventually
from tests.support.keepers import fresh_keeper, listed  # noqa: F401 - a fixture
from tests.support.operators import has_free_permit, locks

pytestmark = pytest.mark.usefixtures("fresh_keeper")


@pytest.mark.parametrize("key", [None, "42"])
def test_newcomers_are_admitted_after_the_pause_ended_by_itself(key: str | None) -> None:
    actions.pause("p", seconds=2.5)
    paused_at = time.monotonic()
    assert not has_free_permit("p", key=key)
    eventually(lambda: has_free_permit("p", key=key))
    assert time.monotonic() - paused_at > 2
    assert not status_of("p", key).paused


@pytest.mark.parametrize("key", [None, "42"])
def test_waiters_are_admitted_when_the_pause_ends_by_itself(key: str | None) -> None:
    actions.pause("p", seconds=1.5)
    with ThreadPoolExecutor(2) as threads:
        waiting = [
            threads.submit(Semaphore("p", 2, key=key).acquire, blocking_timeout=60)
            for _ in range(2)
        ]
        leases = [one.result(60) for one in waiting]
    for lease in leases:
        assert lease is not None
        lease.release()


def test_pause_that_ended_by_itself_leaves_no_data(raw: redis.Redis) -> None:
    actions.pause("p", seconds=0.2)
    assert [("p", None)] == marked()
    eventually(lambda: not marked())
    assert not raw.exists(f"{settings.PREFIX}:marks")
    assert 0 < raw.pttl(f"{settings.PREFIX}:{{p}}:info") < 60_000


def test_status_contains_the_end_of_the_pause() -> None:
    actions.pause("p", seconds=600)
    until = status_of("p").paused_until
    assert until is not None
    left = until - datetime.now(timezone.utc)
    assert timedelta(minutes=8) < left < timedelta(minutes=12)
    actions.pause("q")
    assert status_of("q").paused_until is None


def test_second_pause_keeps_the_start_and_changes_the_end() -> None:
    actions.pause("p")
    since = status_of("p").paused_since
    time.sleep(0.01)
    assert [] == actions.pause("p")
    assert since == status_of("p").paused_since
    assert ["p"] == actions.pause("p", seconds=600)
    assert since == status_of("p").paused_since
    assert status_of("p").paused_until is not None
    assert ["p"] == actions.pause("p")
    assert (since, None) == (status_of("p").paused_since, status_of("p").paused_until)


def test_action_that_changes_nothing_is_not_recorded() -> None:
    with Lock("p"):
        assert [] == actions.resume("p") == actions.reset("p")
        assert ["p"] == actions.pause("p")
        assert [] == actions.pause("p")
        assert ["p"] == actions.resize("p", None, 3)
        assert [] == actions.resize("p", None, 3)
        assert ["resize", "pause"] == [one.what for one in actions.acts("p")]


def test_record_of_a_pause_contains_its_end() -> None:
    actions.pause("p", seconds=600)
    (act,) = actions.acts("p")
    assert act.until == status_of("p").paused_until
    assert act.text.startswith("paused until ")


@pytest.mark.parametrize("seconds", [0, -1, float("inf"), float("nan")])
def test_pause_rejects_invalid_seconds(seconds: float) -> None:
    with pytest.raises(ValueError, match="seconds must be"):
        actions.pause("p", seconds=seconds)
    assert not marked()


# The command


def test_command_pause_for_prints_the_end_of_the_pause() -> None:
    with Lock("exports"):
        eventually(lambda: listed("exports"))
        text = locks("pause", "exports", "--for", "10m")
        assert text.startswith("Paused exports until ")
        assert "Paused" in locks("status", "exports") and "until" in locks("status", "exports")
        until = status_of("exports").paused_until
        assert until is not None
        left = until - datetime.now(timezone.utc)
        assert timedelta(minutes=8) < left < timedelta(minutes=12)


@pytest.mark.parametrize("text", ["0", "ten", "5w", "-3m", "1.5h"])
def test_command_pause_rejects_an_invalid_duration(text: str) -> None:
    with pytest.raises(CommandError):
        locks("pause", "exports", "--create", "--for", text)


@pytest.mark.parametrize("words", [("pause", "exprots"), ("resize", "exprots", "3")])
def test_command_rejects_an_unknown_name_without_create(words: tuple[str, ...]) -> None:
    with Lock("exports"):
        eventually(lambda: listed("exports"))
        with pytest.raises(CommandError, match=r"Did you mean exports\?") as caught:
            locks(*words)
    assert 3 == caught.value.returncode
    assert [] == marked() == actions.acts()
    assert "exprots" in locks(*words, "--create")
    assert [("exprots", None)] == marked()


def test_command_reports_that_nothing_was_changed() -> None:
    with Lock("exports"):
        eventually(lambda: listed("exports"))
        for words in (("resume", "exports"), ("resize", "exports", "--reset")):
            assert "nothing was changed" in locks(*words)
        locks("pause", "exports")
        assert "nothing was changed" in locks("pause", "exports")
    assert 1 == len(actions.acts())
