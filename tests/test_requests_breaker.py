"""The breaker of a process: without a server or a thread."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import pytest
from redis import AuthenticationError

from django_redis_sync.limits import holding, outage
from django_redis_sync.limits.outage import Breaker
from django_redis_sync.limits.rooms import rooms
from django_redis_sync.protocol.plans import Failure

DOWN = ConnectionError("refused")


class Quiet(Breaker):
    """Without probes: the test says when one was answered. `told`: what receivers hear."""

    def __init__(self) -> None:
        super().__init__("default")
        self.told: list[bool] = []

    def _look_after_probes(self) -> None: ...

    def _tell(self, down: bool) -> None:
        self.told.append(down)

    def probe_answered(self) -> None:
        self._answered = True


@pytest.fixture
def redis() -> Quiet:
    return Quiet()


@pytest.fixture
def down(redis: Quiet) -> Quiet:
    redis.failed(redis.era, DOWN)
    return redis


def test_while_it_is_up_all_may_ask(redis: Quiet) -> None:
    assert [0, 0, 0] == [redis.ask() for _ in range(3)]
    redis.succeeded(0)
    assert (False, []) == (redis.down, redis.told)


def test_while_it_is_down_none_may_ask_and_it_is_told_once(down: Quiet) -> None:
    assert [None] * 3 == [down.ask() for _ in range(3)]
    down.failed(0, DOWN)  # of one that had asked before
    assert (True, [True]) == (down.down, down.told)


def test_each_outage_says_what_it_is(redis: Quiet, caplog: pytest.LogCaptureFixture) -> None:
    """That it turns us away is no less told of a second time within minutes."""
    for _ in range(2):
        redis.failed(redis.era, AuthenticationError("WRONGPASS invalid username-password pair"))
        redis.succeeded(redis.era)
    said = [one.getMessage() for one in caplog.records if one.levelname == "ERROR"]
    assert [True] * 2 == ["turns us away, for our user or password" in one for one in said]
    said = [one.getMessage() for one in caplog.records if one.levelname == "WARNING"]
    assert ["Redis of the cache 'default' is back: limits hold again"] * 2 == said


def test_an_outage_is_told_with_its_cause(down: Quiet, caplog: pytest.LogCaptureFixture) -> None:
    assert ["Redis of the cache 'default' is down (refused): on_outage rules"] == [
        one.getMessage() for one in caplog.get_records("setup")
    ]


def test_after_an_answered_probe_a_single_request_tries(down: Quiet) -> None:
    down.probe_answered()
    assert [down.era, None, None] == [down.ask() for _ in range(3)]


def test_the_one_that_tries_decides_for_all(down: Quiet) -> None:
    down.probe_answered()
    era = down.ask()
    assert era is not None
    down.failed(era, DOWN)
    assert (True, None) == (down.down, down.ask())
    down.probe_answered()
    down.succeeded(down.ask() or 0)
    assert (False, [True, False]) == (down.down, down.told)
    assert [down.era] * 2 == [down.ask(), down.ask()]


def test_after_a_try_that_was_cancelled_another_tries(down: Quiet) -> None:
    down.probe_answered()
    era = down.ask()
    assert era is not None
    down.abandoned(era)
    assert [era, None] == [down.ask(), down.ask()]


def test_a_cancelled_request_of_another_time_means_nothing(down: Quiet) -> None:
    down.abandoned(down.era - 1)
    down.abandoned(down.era + 2)
    assert down.ask() is None


def test_what_comes_late_says_nothing_of_another_outage(redis: Quiet) -> None:
    first = redis.era
    redis.failed(first, DOWN)
    outage_of = redis.era
    redis.succeeded(first)  # it had asked before
    assert redis.down
    redis.succeeded(outage_of)
    redis.failed(first, DOWN)
    redis.failed(outage_of, DOWN)
    assert not redis.down
    redis.succeeded(outage_of)
    redis.failed(redis.era, DOWN)
    redis.succeeded(outage_of)
    assert (True, [True, False, True]) == (redis.down, redis.told)


def test_a_breaker_that_is_retired_probes_no_more(down: Quiet) -> None:
    down.retire()
    assert not down.down
    down.retire()
    assert not down.down


def test_one_thread_probes(monkeypatch: pytest.MonkeyPatch) -> None:
    begun: list[Any] = []

    class Thread:
        def __init__(self, **given: Any) -> None:
            self.said = given.get("daemon"), given.get("name")

        def start(self) -> None:
            begun.append(self)

        def is_alive(self) -> bool:
            return alive

    alive = True
    monkeypatch.setattr(outage.threading, "Thread", Thread)
    monkeypatch.setattr(outage, "tell", lambda *calls: None)
    redis = Breaker("default")
    redis.failed(redis.era, DOWN)
    for _ in range(3):
        assert redis.ask() is None
    assert 1 == len(begun)
    alive = False
    redis.ask()
    # No process outlives its work for it.
    assert [(True, "redis-sync-probe-default")] * 2 == [one.said for one in begun]


def test_a_probe_that_fails_is_no_answer(monkeypatch: pytest.MonkeyPatch, down: Quiet) -> None:
    answers = [False, False, True]

    def sleep(seconds: float) -> None:
        assert outage.WINDOW == seconds == 1.0
        if not answers:
            down.retire()

    monkeypatch.setattr(outage.time, "sleep", sleep)
    monkeypatch.setattr(down, "_is_there", lambda: answers.pop(0))
    monkeypatch.setattr(down, "retire", lambda: setattr(down, "_era", down._era + 1))
    down._probe()
    assert [] == answers


def test_what_does_not_end_by_itself_is_said_again_as_time_goes_by(
    monkeypatch: pytest.MonkeyPatch, redis: Quiet, caplog: pytest.LogCaptureFixture
) -> None:
    now, wrong = [0.0], AuthenticationError("WRONGPASS invalid username-password pair")

    def command(*_: Any, **__: Any) -> None:
        raise Failure(wrong if now[0] < 900 else DOWN, now[0], "final")

    monkeypatch.setattr(outage, "clock", lambda: now[0])
    monkeypatch.setattr(outage, "server_of", lambda alias: SimpleNamespace(command=command))
    redis.failed(redis.era, wrong)
    said = []
    for after in (1, 299, 301, 302, 900):
        now[0] = after
        caplog.clear()
        assert not redis._is_there()
        said.append(len(caplog.records))
    assert [0, 0, 1, 0, 0] == said


def test_a_probe_that_cannot_be_made_is_told_and_no_answer(
    monkeypatch: pytest.MonkeyPatch, down: Quiet, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(outage, "server_of", lambda alias: {}[alias])
    caplog.clear()
    assert not down._is_there()
    assert ["probing the Redis of the cache 'default' failed"] == caplog.messages


def test_receivers_hear_of_which_cache_and_what(monkeypatch: pytest.MonkeyPatch) -> None:
    heard: list[Any] = []

    def receiver(alias: str, down: bool, **_: Any) -> None:
        heard.append((alias, down))

    monkeypatch.setattr(outage, "tell", lambda call: call())
    monkeypatch.setattr(Breaker, "_look_after_probes", lambda breaker: None)
    redis = Breaker("aside")
    outage.outage_changed.connect(receiver)
    try:
        redis.failed(redis.era, DOWN)
        redis.succeeded(redis.era)
    finally:
        outage.outage_changed.disconnect(receiver)
    assert [("aside", True), ("aside", False)] == heard


@pytest.mark.parametrize("setting", ["REDIS_SYNC", "CACHES"])
def test_settings_that_changed_end_all_probing(setting: str, settings: Any) -> None:
    some = [outage.breaker(alias) for alias in ("default", "other")]
    for one in some:
        one._era += 1  # down
    setattr(settings, setting, {**getattr(settings, setting)})
    assert [False, False] == [one.down for one in some]
    assert outage.breaker("default") is not some[0]


def test_a_fork_has_breakers_and_rooms_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    mine, here, reaper = outage.breaker("default"), rooms(), holding._reaper()
    assert (mine, here, reaper) == (outage.breaker("default"), rooms(), holding._reaper())
    monkeypatch.setattr(holding, "_reapers", {**holding._reapers})
    monkeypatch.setattr(outage.os, "getpid", lambda: -1)
    assert mine is not outage.breaker("default")
    assert here is not rooms()
    assert reaper is not holding._reaper()


def test_a_probe_does_not_wait_for_a_redis_that_hangs(
    redis: Quiet, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[float] = []

    def command(*words: str, timeout: float = math.inf) -> str:
        given.append(timeout)
        return "PONG"

    monkeypatch.setattr(outage, "server_of", lambda alias: SimpleNamespace(command=command))
    assert redis._is_there()
    assert [outage.PROBE] == given
