"""How a semaphore resolves its options: arguments, then SEMAPHORES, then defaults. No server."""

from __future__ import annotations

import copy
import gc
import math
import pickle
import weakref
from typing import Any

import pytest

from django_redis_sync import Lock, Semaphore, synchronized
from django_redis_sync.engine.wire import ATTEMPT
from django_redis_sync.locks import options as resolving
from django_redis_sync.locks.lease_state import LeaseSettings
from django_redis_sync.protocol.plans import AcquireRequest
from django_redis_sync.testing import without_redis

NAMED = {"limit": 5, "timeout": 50, "blocking_timeout": 5, "max_hold": 500, "min_hold": 0.5}


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time of the clock in seconds, as the only item."""
    time = [1000.0]
    monkeypatch.setattr(resolving, "clock", lambda: time[0])
    return time


def request_of(semaphore: Semaphore, *arguments: Any) -> tuple[LeaseSettings, AcquireRequest]:
    """Return the settings and the request of `acquire(blocking, blocking_timeout, permits)`."""
    return semaphore._terms_and_ask(*arguments, *(None, None, 1)[len(arguments) :])


def effective_options(semaphore: Semaphore, clock: list[float]) -> dict[str, float]:
    """Return the value of each option."""
    terms, request = request_of(semaphore)
    return {
        "limit": request.limit,
        "timeout": terms.timeout,
        "blocking_timeout": request.give_up_at - clock[0],
        "max_hold": terms.max_hold,
        "min_hold": terms.min_hold,
    }


def test_argument_overrides_semaphores_which_override_the_defaults(
    settings: Any, clock: list[float]
) -> None:
    general = {"TIMEOUT": 40, "BLOCKING_TIMEOUT": 4, "MAX_HOLD": 400}
    settings.REDIS_SYNC = {**settings.REDIS_SYNC, **general, "SEMAPHORES": {"exports": NAMED}}
    own = {"timeout": 60, "blocking_timeout": 6, "max_hold": 600, "min_hold": 0.6}
    assert {"limit": 6, **own} == effective_options(Semaphore("exports", 6, **own), clock)
    assert NAMED == effective_options(Semaphore("exports"), clock)
    defaults = {"timeout": 40, "blocking_timeout": 4, "max_hold": 400, "min_hold": 0}
    assert {"limit": 6, **defaults} == effective_options(Semaphore("others", 6), clock)


@pytest.mark.parametrize("option", [*NAMED])
def test_each_option_in_semaphores_applies_by_itself(
    option: str, settings: Any, clock: list[float]
) -> None:
    limit = None if option == "limit" else 9
    others = effective_options(Semaphore("exports", 9), clock)
    named = {option: NAMED[option]}
    settings.REDIS_SYNC = {**settings.REDIS_SYNC, "SEMAPHORES": {"exports": named}}
    assert {**others, **named} == effective_options(Semaphore("exports", limit), clock)


def test_arguments_of_a_call_override_those_of_the_object(clock: list[float]) -> None:
    semaphore = Semaphore("exports", 3, blocking_timeout=6)
    assert 1002.0 == request_of(semaphore, None, 2)[1].give_up_at
    assert 2 == request_of(semaphore, None, None, 2)[1].permits
    assert not request_of(semaphore, False)[1].wait
    assert not request_of(semaphore, True, 0)[1].wait
    assert request_of(Semaphore("exports", 3, blocking=False), True)[1].wait
    assert not request_of(Semaphore("exports", 3, blocking=False))[1].wait
    for given in (0, 1):
        assert bool(given) is Semaphore("exports", 3, blocking=given).blocking  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("options", "renewed"),
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
def test_lease_with_a_timeout_is_renewed_only_with_renew_true(options: Any, renewed: bool) -> None:
    assert renewed == request_of(Lock("nightly", **options))[0].renew


def test_max_hold_shortens_the_lease() -> None:
    terms, request = request_of(Lock("nightly", timeout=60, max_hold=10, renew=True))
    assert (10, 10) == (terms.timeout, request.lease)


def test_reply_timeouts_are_at_most_the_blocking_timeout(clock: list[float]) -> None:
    def times(*arguments: Any) -> tuple[float, float]:
        request = request_of(Lock("nightly"), *arguments)[1]
        return request.attempt, request.budget

    assert (ATTEMPT, 2 * ATTEMPT) == times() == times(False) == times(None, 1000)
    assert (2.0, 4.0) == times(None, 4)
    assert (0.5, 1.0) == times(None, 0.1)


@pytest.mark.parametrize(
    ("options", "minutes", "minutes_of_a_key"),
    [
        ({}, 1440, 60),
        ({"STATS_HOURS": 0.5}, 30, 30),
        ({"STATS_HOURS": 24}, 1440, 60),
        ({"STATS": False}, 0, 0),
    ],
)
def test_stats_settings_determine_the_minutes_of_history(
    options: Any, minutes: int, minutes_of_a_key: int, settings: Any
) -> None:
    settings.REDIS_SYNC = {**settings.REDIS_SYNC, **options}
    assert minutes == request_of(Lock("nightly"))[0].keys.keep
    assert minutes_of_a_key == request_of(Semaphore("exports", 3, key="7"))[0].keys.keep


# Objects with equal arguments


def test_objects_do_not_share_name_key_label_or_callback() -> None:
    made = [Semaphore(name, 2, key=key) for name in "ab" for key in (None, "k")]
    assert ["a", "a@k", "b", "b@k"] == [request_of(each)[0].keys.display for each in made]
    called: list[Any] = []
    locks = Lock("a", on_lost=called.append, label="mine"), Lock("a")
    assert [locks[0].on_lost, None] == [request_of(lock)[0].on_lost for lock in locks]
    assert [True, False] == ["mine" in request_of(lock)[1].label for lock in locks]


def test_callback_is_collected_with_its_object() -> None:
    class Callback:
        def __call__(self, lease: Any) -> None: ...

    callback = Callback()
    reference, lock = weakref.ref(callback), Lock("a", on_lost=callback)
    request_of(lock)
    del callback, lock
    gc.collect()
    assert reference() is None


def test_arguments_of_a_call_do_not_change_the_next_call() -> None:
    before = request_of(Semaphore("a", 2))[1]
    for given in ((None, 0.5), (None, None, 2), (False,)):
        request_of(Semaphore("a", 2), *given)
    after = request_of(Semaphore("a", 2))[1]
    expected = before.permits, before.give_up_at, before.wait
    assert expected == (after.permits, after.give_up_at, after.wait)


def test_option_caches_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(2_000):
        request_of(Lock("a", timeout=1 + number / 1000))
    found = resolving.attributes_of.cache_info()
    assert found.currsize <= found.maxsize == 512
    lock, numbers = Lock("a"), iter(range(1_000))
    monkeypatch.setattr(resolving, "write_label", lambda label: f"thread {next(numbers)}")
    assert [f"thread {n}" for n in range(1_000)] == [
        request_of(lock)[1].label for _ in range(1_000)
    ]
    assert len(lock._usual) <= 64


def test_synchronized_stores_the_template_of_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Semaphore] = []
    monkeypatch.setattr(Semaphore, "_take", lambda self: made.append(self) or 1 / 0)

    @synchronized("invoice:{pk}")
    def send(pk: int) -> None: ...

    with pytest.raises(ZeroDivisionError):
        send(7)
    assert ("invoice:7", "invoice:{pk}") == (made[0].name, request_of(made[0])[0].template)
    assert "" == request_of(Semaphore("invoice:7", 1))[0].template


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ({"limit": 1}, {"limit": True}),
        ({"limit": 1}, {"limit": 1.0}),
        ({"limit": 1, "timeout": 1}, {"limit": 1, "timeout": True}),
        ({"limit": 1, "release_on_commit": True}, {"limit": 1, "release_on_commit": 1}),
    ],
)
def test_equal_value_of_a_wrong_type_is_rejected_after_the_right_one(
    right: Any, wrong: Any
) -> None:
    Semaphore("a", **right)
    with pytest.raises(TypeError):
        Semaphore("a", **wrong)


def test_changed_attribute_of_an_object_changes_no_other_object() -> None:
    class Hard(Lock):
        def __init__(self, name: str, seconds: float) -> None:
            super().__init__(name)
            self.timeout = seconds

    made = [Hard("a", 5), Hard("b", 6), Lock("c")]
    assert [request_of(each)[0].timeout for each in made] == [5, 6, 30]


@pytest.mark.parametrize("used", [False, True], ids=["new", "used"])
@pytest.mark.parametrize("send", [pickle.dumps, copy.deepcopy])
def test_lock_cannot_be_pickled_or_copied(send: Any, used: bool) -> None:
    lock = Lock("a")
    if used:
        with without_redis(), lock:
            pass
    with pytest.raises(TypeError, match="pickle"):
        send(lock)
