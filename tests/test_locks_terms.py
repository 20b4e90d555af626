"""What a primitive asks for: its arguments, then SEMAPHORES, then the defaults. No server."""

from __future__ import annotations

import math
from typing import Any

import pytest
from django.core.exceptions import ImproperlyConfigured

from django_redis_sync import Lock, ReadWriteLock, Semaphore, synchronized
from django_redis_sync.engine import labels
from django_redis_sync.engine.wire import ATTEMPT
from django_redis_sync.locks import terms as asking
from django_redis_sync.locks.lease_state import Terms
from django_redis_sync.protocol.plans import Ask

NAMED = {"limit": 5, "timeout": 50, "blocking_timeout": 5, "max_hold": 500, "min_hold": 0.5}


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The clock's time."""
    time = [1000.0]
    monkeypatch.setattr(asking, "clock", lambda: time[0])
    return time


def asked(semaphore: Semaphore, *said: Any) -> tuple[Terms, Ask]:
    """`said`: blocking, blocking_timeout, permits."""
    return semaphore._terms_and_ask(*said, *(None, None, 1)[len(said) :])


def in_force(semaphore: Semaphore, now: list[float]) -> dict[str, float]:
    """The value of each option."""
    terms, ask = asked(semaphore)
    return {
        "limit": ask.limit,
        "timeout": terms.timeout,
        "blocking_timeout": ask.give_up_at - now[0],
        "max_hold": terms.max_hold,
        "min_hold": terms.min_hold,
    }


def test_the_argument_rules_then_semaphores_then_the_defaults(
    settings: Any, now: list[float]
) -> None:
    general = {"TIMEOUT": 40, "BLOCKING_TIMEOUT": 4, "MAX_HOLD": 400}
    settings.REDIS_SYNC = {**settings.REDIS_SYNC, **general, "SEMAPHORES": {"exports": NAMED}}
    own = {"timeout": 60, "blocking_timeout": 6, "max_hold": 600, "min_hold": 0.6}
    assert {"limit": 6, **own} == in_force(Semaphore("exports", 6, **own), now)
    assert NAMED == in_force(Semaphore("exports"), now)
    defaults = {"timeout": 40, "blocking_timeout": 4, "max_hold": 400, "min_hold": 0}
    assert {"limit": 6, **defaults} == in_force(Semaphore("others", 6), now)


@pytest.mark.parametrize("option", [*NAMED])
def test_each_option_of_semaphores_counts_by_itself(
    option: str, settings: Any, now: list[float]
) -> None:
    limit = None if option == "limit" else 9
    others = in_force(Semaphore("exports", 9), now)
    named = {option: NAMED[option]}
    settings.REDIS_SYNC = {**settings.REDIS_SYNC, "SEMAPHORES": {"exports": named}}
    assert {**others, **named} == in_force(Semaphore("exports", limit), now)


def test_a_wrong_option_of_semaphores_is_said_by_its_place(settings: Any) -> None:
    named = {"exports": {"limit": 2, "timeout": -1}}
    settings.REDIS_SYNC = {**settings.REDIS_SYNC, "SEMAPHORES": named}
    place = r"REDIS_SYNC\['SEMAPHORES'\]\['exports'\]: timeout must be above 0"
    with pytest.raises(ImproperlyConfigured, match=place):
        asked(Semaphore("exports"))


def test_the_call_rules_over_the_object(now: list[float]) -> None:
    semaphore = Semaphore("exports", 3, blocking_timeout=6)
    assert 1002.0 == asked(semaphore, None, 2)[1].give_up_at
    assert 2 == asked(semaphore, None, None, 2)[1].permits
    assert not asked(semaphore, False)[1].wait
    assert not asked(semaphore, True, 0)[1].wait
    assert asked(Semaphore("exports", 3, blocking=False), True)[1].wait
    assert not asked(Semaphore("exports", 3, blocking=False))[1].wait
    for given in (0, 1):
        assert bool(given) is Semaphore("exports", 3, blocking=given).blocking  # type: ignore[arg-type]


def test_a_time_to_wait_counts_from_each_ask(now: list[float]) -> None:
    semaphore = Lock("nightly", blocking_timeout=0.5)
    assert 1000.5 == asked(semaphore)[1].give_up_at
    now[0] = 2000.0
    assert 2000.5 == asked(semaphore)[1].give_up_at
    assert math.inf == asked(Lock("nightly"))[1].give_up_at


def test_each_ask_has_the_label_of_its_own_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    lock = Lock("nightly", label="a job")
    assert labels.write("a job") == asked(lock)[1].label
    monkeypatch.setattr(labels, "write", lambda label: f"another thread: {label}")
    assert "another thread: a job" == asked(lock)[1].label


def test_changed_settings_count_from_the_next_ask_on(settings: Any) -> None:
    lock = Lock("nightly")
    assert 30 == asked(lock)[0].timeout
    settings.REDIS_SYNC = {**settings.REDIS_SYNC, "TIMEOUT": 20}
    assert 20 == asked(lock)[0].timeout


@pytest.mark.parametrize(
    ("said", "renewed"),
    [
        ({}, True),
        ({"timeout": 10}, False),
        ({"timeout": 10, "renew": True}, True),
        ({"renew": False}, False),
        ({"timeout": math.inf}, False),
        ({"timeout": math.inf, "renew": True}, False),
    ],
    ids=str,
)
def test_a_lease_of_a_given_time_is_renewed_when_told_so(said: Any, renewed: bool) -> None:
    assert renewed == asked(Lock("nightly", **said))[0].renew


def test_no_lease_is_longer_than_max_hold() -> None:
    terms, ask = asked(Lock("nightly", timeout=60, max_hold=10, renew=True))
    assert (10, 10) == (terms.timeout, ask.lease)


def test_an_answer_may_take_as_long_as_the_wait_at_the_most(now: list[float]) -> None:
    def times(*said: Any) -> tuple[float, float]:
        ask = asked(Lock("nightly"), *said)[1]
        return ask.attempt, ask.budget

    assert (ATTEMPT, 2 * ATTEMPT) == times() == times(False) == times(None, 1000)
    assert (2.0, 4.0) == times(None, 4)
    assert (0.5, 1.0) == times(None, 0.1)


def test_what_the_caller_said_goes_along() -> None:
    told = print
    semaphore = Semaphore("exports", 3, key="7", fair=False, using="default", on_lost=told)
    terms, ask = asked(semaphore)
    assert (told, "default", "exports@7") == (terms.on_lost, terms.alias, terms.keys.display)
    assert (False, 10**9, "p") == (ask.fair, ask.max_waiters, ask.kind)
    assert ask.learn is not None and ask.waits is not None
    assert asked(Lock("nightly"))[1].learn is None
    assert asked(Lock("nightly", key="7"))[1].learn is not None
    assert asked(Lock("nightly"))[1].fair
    assert "w" == asked(ReadWriteLock("rows").read)[1].kind


def test_the_names_of_a_template_know_it(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Semaphore] = []
    monkeypatch.setattr(Semaphore, "take", lambda self: made.append(self) or 1 / 0)

    @synchronized("invoice:{pk}")
    def send(pk: int) -> None: ...

    with pytest.raises(ZeroDivisionError):
        send(7)
    assert ("invoice:7", "invoice:{pk}") == (made[0].name, asked(made[0])[0].template)


def test_a_waiter_is_known_to_the_clerk_for_as_long_as_it_waits() -> None:
    terms, ask = asked(Lock("nightly"))
    assert ask.waits is not None
    waiting = asking.keeper("default").clerk.waiting
    ask.waits("t", True)
    assert terms is waiting["t"]
    ask.waits("t", False)
    assert "t" not in waiting


@pytest.mark.parametrize(
    ("what", "warned"),
    [
        (Lock("nightly"), True),
        (Lock("nightly", blocking_timeout=9), False),
        (Semaphore("exports", 3), False),
        (ReadWriteLock("rows").read, False),
        (ReadWriteLock("rows").write, False),
    ],
    ids=repr,
)
def test_of_an_rlock_is_told_where_one_would_do(
    what: Semaphore, warned: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[Any] = []
    monkeypatch.setattr(asking, "warn_of_own_hold", lambda *said: told.append(said))
    terms, ask = asked(what)
    assert ask.waits is not None
    for so in (True, False):
        ask.waits("t", so)
    assert [(terms.keys, "default")] * warned == told


def test_a_prefix_that_caches_alone_say_counts_from_the_next_ask_on(settings: Any) -> None:
    settings.REDIS_SYNC = {**settings.REDIS_SYNC, "KEY_PREFIX": None}
    lock = Lock("nightly")
    for own, prefix in (("shop", "shop:sync"), ("", "sync"), ("other", "other:sync")):
        cache = {**settings.CACHES["default"], "KEY_PREFIX": own}
        settings.CACHES = {**settings.CACHES, "default": cache}
        assert f"{prefix}:{{nightly}}:leases" == asked(lock)[0].keys.leases
    for given in ("mine", ""):
        settings.REDIS_SYNC = {**settings.REDIS_SYNC, "KEY_PREFIX": given}
        assert f"{given}:{{nightly}}:leases" == asked(lock)[0].keys.leases


@pytest.mark.parametrize(
    ("said", "minutes", "of_a_child"),
    [
        ({}, 360, 60),
        ({"STATS_HOURS": 0.5}, 30, 30),
        ({"STATS_HOURS": 24}, 1440, 60),
        ({"STATS": False}, 0, 0),
    ],
)
def test_so_many_minutes_of_history_are_kept(
    said: Any, minutes: int, of_a_child: int, settings: Any
) -> None:
    settings.REDIS_SYNC = {**settings.REDIS_SYNC, **said}
    assert minutes == asked(Lock("nightly"))[0].keys.keep
    assert of_a_child == asked(Semaphore("exports", 3, key="7"))[0].keys.keep
