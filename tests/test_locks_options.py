"""What an object asks for: its arguments, then SEMAPHORES, then the defaults. No server."""

from __future__ import annotations

import copy
import gc
import math
import pickle
import weakref
from typing import Any

import pytest
from django.conf import settings as django_settings
from django.test import override_settings

from django_redis_sync import Lock, Semaphore, synchronized
from django_redis_sync.engine.wire import ATTEMPT
from django_redis_sync.locks import options as resolving
from django_redis_sync.locks.lease_state import LeaseSettings
from django_redis_sync.protocol.plans import AcquireRequest
from django_redis_sync.testing import without_redis

NAMED = {"limit": 5, "timeout": 50, "blocking_timeout": 5, "max_hold": 500, "min_hold": 0.5}


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The clock's time."""
    time = [1000.0]
    monkeypatch.setattr(resolving, "clock", lambda: time[0])
    return time


def asked(semaphore: Semaphore, *said: Any) -> tuple[LeaseSettings, AcquireRequest]:
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


@pytest.mark.parametrize(
    ("said", "minutes", "of_a_child"),
    [
        ({}, 1440, 60),
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


def changed(**options: Any) -> Any:
    return override_settings(REDIS_SYNC={**django_settings.REDIS_SYNC, **options})


# What equal objects share


def test_each_object_has_its_own_name_key_label_and_callback() -> None:
    made = [Semaphore(name, 2, key=key) for name in "ab" for key in (None, "k")]
    assert ["a", "a@k", "b", "b@k"] == [asked(one)[0].keys.display for one in made]
    called: list[Any] = []
    one, other = Lock("a", on_lost=called.append, label="mine"), Lock("a")
    assert (one.on_lost, None) == (asked(one)[0].on_lost, asked(other)[0].on_lost)
    assert [True, False] == ["mine" in asked(made)[1].label for made in (one, other)]


def test_what_an_object_calls_is_freed_with_it() -> None:
    class Callback:
        def __call__(self, lease: Any) -> None: ...

    callback = Callback()
    gone, lock = weakref.ref(callback), Lock("a", on_lost=callback)
    asked(lock)
    del callback, lock
    gc.collect()
    assert gone() is None


def test_what_one_call_says_does_not_change_the_next() -> None:
    usual = asked(Semaphore("a", 2))[1]
    for given in ((None, 0.5), (None, None, 2), (False,)):
        asked(Semaphore("a", 2), *given)
    again = asked(Semaphore("a", 2))[1]
    expected = usual.permits, usual.give_up_at, usual.wait
    assert expected == (again.permits, again.give_up_at, again.wait)


def test_caches_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(2_000):
        asked(Lock("a", timeout=1 + number / 1000))
    found = resolving.attributes_of.cache_info()
    assert found.currsize <= found.maxsize == 512
    lock, numbers = Lock("a"), iter(range(1_000))
    monkeypatch.setattr(resolving, "write_label", lambda label: f"thread {next(numbers)}")
    assert [f"thread {n}" for n in range(1_000)] == [asked(lock)[1].label for _ in range(1_000)]
    assert len(lock._usual) <= 64


def test_synchronized_asks_by_template(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Semaphore] = []
    monkeypatch.setattr(Semaphore, "_take", lambda self: made.append(self) or 1 / 0)

    @synchronized("invoice:{pk}")
    def send(pk: int) -> None: ...

    with pytest.raises(ZeroDivisionError):
        send(7)
    assert ("invoice:7", "invoice:{pk}") == (made[0].name, asked(made[0])[0].template)
    assert "" == asked(Semaphore("invoice:7", 1))[0].template


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ({"limit": 1}, {"limit": True}),
        ({"limit": 1}, {"limit": 1.0}),
        ({"limit": 1, "timeout": 1}, {"limit": 1, "timeout": True}),
        ({"limit": 1, "release_on_commit": True}, {"limit": 1, "release_on_commit": 1}),
    ],
)
def test_an_equal_value_of_a_wrong_type_is_still_refused(right: Any, wrong: Any) -> None:
    Semaphore("a", **right)
    with pytest.raises(TypeError):
        Semaphore("a", **wrong)


def test_an_object_that_was_changed_changes_no_other() -> None:
    class Hard(Lock):
        def __init__(self, name: str, seconds: float) -> None:
            super().__init__(name)
            self.timeout = seconds

    made = [Hard("a", 5), Hard("b", 6), Lock("c")]
    assert [asked(one)[0].timeout for one in made] == [5, 6, 30]


@pytest.mark.parametrize("used", [False, True], ids=["new", "used"])
@pytest.mark.parametrize("send", [pickle.dumps, copy.deepcopy])
def test_what_a_process_holds_is_not_sent_to_another(send: Any, used: bool) -> None:
    lock = Lock("a")
    if used:
        with without_redis(), lock:
            pass
    with pytest.raises(TypeError, match="pickle"):
        send(lock)
