"""`single_flight` runs a function once for equal calls, and shares the result."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import functools
import inspect
import itertools
import logging
import os
import pickle
import subprocess
import sys
import threading
import time
import types
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from asgiref.sync import ThreadSensitiveContext, sync_to_async
from django.core.cache import caches
from django.core.cache.backends.locmem import LocMemCache
from django.core.checks import run_checks
from django.core.exceptions import ImproperlyConfigured, SynchronousOnlyOperation
from django.utils.decorators import method_decorator

from django_redis_sync import (
    NotAcquired,
    ReadWriteLock,
    SyncError,
    Unavailable,
    single_flight,
)
from django_redis_sync.exceptions import CallFailed
from django_redis_sync.testing import without_redis
from tests.behaviour.both import MAX_WAIT, Sync, both, eventually, until
from tests.behaviour.watching import sent
from tests.support.interrupting import interruptions
from tests.support.operators import locks

pytestmark = [pytest.mark.usefixtures("clean_redis"), pytest.mark.promise(34)]

_numbers = itertools.count(1)


@pytest.fixture(autouse=True)
def _only_the_caches_of_this_test(monkeypatch: pytest.MonkeyPatch) -> None:
    """System checks in other tests must not know them."""
    module = sys.modules["django_redis_sync.locks.single_flight"]
    monkeypatch.setattr(module, "aliases", {})


#: A server at this address does not exist.
NOWHERE = "redis://127.0.0.1:1/0"


async def call(function: Any, *args: Any, **kwargs: Any) -> Any:
    result = function(*args, **kwargs)
    return await result if inspect.isawaitable(result) else result


async def forget(io: Any, function: Any, *args: Any, **kwargs: Any) -> None:
    await io.do(function, "forget", *args, **kwargs)


class Function:
    """A function with the parameter `key`. It counts its runs, and can be stopped in a run."""

    def __init__(self, io: Any, name: str = "work:{key}", **options: Any) -> None:
        self.runs, self.io = 0, io
        self.go, self.result = threading.Event(), [lambda key, run: f"{key}-{run}"]
        self.go.set()

        async def work(key: Any = 7) -> Any:
            self.runs += 1
            run = self.runs
            await until(io, self.go.is_set)
            return self.result[0](key, run)

        def plain(key: Any = 7) -> Any:
            return io.run(work(key))

        self.shared: Any = single_flight(name, **options)(plain if repr(io) == "sync" else work)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.shared(*args, **kwargs)

    def start(self, *args: Any) -> Any:
        return self.io.start(call(self, *args))

    async def started(self, *args: Any) -> Any:
        """Start a call, and return it as soon as the function runs and stops."""
        self.go.clear()
        runs, started = self.runs, self.start(*args)
        await until(self.io, lambda: self.runs > runs)
        return started

    async def followed(self, count: int = 1) -> list[Any]:
        """Start calls that follow a call of this process."""
        calls = [self.start() for _ in range(count)]
        await until(self.io, lambda: followers() == count)
        return calls


@pytest.fixture
def alias_of(settings: Any) -> Any:
    """Return a function that adds a cache alias for a Redis URL."""

    def add(url: str) -> str:
        alias = f"of-test-{next(_numbers)}"
        settings.CACHES = {
            **settings.CACHES,
            alias: {**settings.CACHES["default"], "LOCATION": url},
        }
        return alias

    return add


@contextlib.contextmanager
def computing(name: str) -> Iterator[Any]:
    """Hold the name, as a call in another process that runs the function."""
    with ThreadPoolExecutor(1) as other, other.submit(ReadWriteLock(name).write.acquire).result():
        yield


def followers() -> int:
    """Return how many calls of this process wait for another call of it."""
    from django_redis_sync.locks.followers import _leaders

    found = [leader for ref in _leaders.values() if (leader := ref()) is not None]
    return sum(len(one._bells) + len(one._wakers) for one in found)


def raised(error: BaseException) -> Any:
    def result(key: Any, run: int) -> Any:
        raise error

    return result


# One runs, all get the result


@both
async def test_equal_calls_run_once_and_all_get_the_result(io, monkeypatch) -> None:
    """More threads follow the first call than may read the result at the same time."""
    monkeypatch.setattr("django_redis_sync.locks.followers.MAX_FOLLOW", 600)
    work = Function(io, ttl=60)
    first = await work.started()
    others = await work.followed(9)
    different = io.start(call(work, 8))
    await until(io, lambda: work.runs == 2)
    work.go.set()
    assert ["7-1"] * 10 == [await io.result(one) for one in [first, *others]]
    assert ["8-2", "7-1", 2] == [await io.result(different), await call(work, key=7), work.runs]


@both
async def test_result_is_shared_with_those_who_waited_only_if_ttl_is_0(io) -> None:
    work = Function(io)
    first = await work.started()
    others = await work.followed(2)
    work.go.set()
    assert ["7-1"] * 3 == [await io.result(one) for one in [first, *others]]
    assert ["7-2", "7-3"] == [await call(work), await call(work)]


@both
async def test_result_is_kept_for_ttl_seconds(io) -> None:
    work = Function(io, ttl=1)
    assert "7-1" == await call(work)
    later = ["7-1"]
    while later[-1] == "7-1":
        later.append(await call(work))
        await io.sleep(0.02)
    assert ["7-2", 2] == [later[-1], work.runs]


@pytest.mark.parametrize("value", [None, False, 0, "", [1, [2]], {"a": (1, 2)}])
@both
async def test_each_call_gets_a_value_of_its_own_also_if_it_is_false(io, value) -> None:
    work = Function(io, ttl=60)
    work.result[0] = lambda key, run: copy.deepcopy(value)
    found = [await call(work) for _ in range(3)]
    assert [value] * 3 == found
    assert 1 == work.runs
    if isinstance(value, (list, dict)):
        assert len({*map(id, found)}) == 3


@both
async def test_long_names_and_names_with_spaces_have_results_of_their_own(io) -> None:
    work = Function(io, "a page:{key}", ttl=60)
    keys = ["x" * 3000, "x" * 3001, "a b\n", "a b", "ä" * 100]
    first = [await call(work, key) for key in keys]
    assert first == [await call(work, key) for key in keys]
    assert len(keys) == len({*first}) == work.runs


# Forget


@both
async def test_forget_lets_the_next_call_run_and_leaves_other_names_alone(io) -> None:
    work = Function(io, ttl=60)
    assert ["7-1", "8-2"] == [await call(work, 7), await call(work, 8)]
    await forget(io, work.shared, key=7)
    await forget(io, work.shared, "unknown")
    assert ["7-3", "8-2", "7-3"] == [await call(work, key) for key in (7, 8, 7)]


@both
async def test_computation_that_began_before_forget_is_not_given_to_later_calls(io) -> None:
    work = Function(io, ttl=60, stale=60)
    assert "7-1" == await call(work)
    await forget(io, work.shared, 7)
    old = await work.started()
    await forget(io, work.shared, 7)
    later = await work.followed(2)
    work.go.set()
    assert "7-2" == await io.result(old), "the call that ran gets its own result"
    assert ["7-3"] * 2 == [await io.result(one) for one in later]
    assert ["7-3", 3] == [await call(work), work.runs]


@both
async def test_forget_twice_during_a_computation_and_once_after_it(io) -> None:
    work = Function(io, ttl=60)
    old = await work.started()
    await forget(io, work.shared, 7)
    await forget(io, work.shared, 7)
    work.go.set()
    assert "7-1" == await io.result(old)
    assert ["7-2", "7-2"] == [await call(work), await call(work)]
    await forget(io, work.shared, 7)
    assert "7-3" == await call(work)


@both
async def test_error_of_a_computation_before_forget_is_not_raised_in_later_calls(io) -> None:
    work = Function(io, ttl=60)
    work.result[0] = raised(ValueError("old"))
    old = await work.started()
    await forget(io, work.shared, 7)
    later = (await work.followed())[0]
    work.result[0] = lambda key, run: run
    failing = raised(ValueError("old"))
    work.result[0] = lambda key, run: failing(key, run) if run == 1 else run
    work.go.set()
    with pytest.raises(ValueError, match="old"):
        await io.result(old)
    assert 2 == await io.result(later)


# Errors, cancellation


class OwnError(Exception):
    pass


@both
async def test_those_who_waited_get_an_error_that_names_the_exception(io) -> None:
    work = Function(io, ttl=60)
    work.result[0] = raised(OwnError("no such\nkey"))
    first = await work.started()
    others = await work.followed(3)
    work.go.set()
    with pytest.raises(OwnError):
        await io.result(first)
    for one in others:
        with pytest.raises(CallFailed) as caught:
            await io.result(one)
        name = f"{OwnError.__module__}.OwnError"
        assert (name, "no such\nkey") == (caught.value.error_type, caught.value.error_text)
        assert f"'work:7': the call that ran raised {name}: no such\nkey" == str(caught.value)
        again = pickle.loads(pickle.dumps(caught.value))
        assert (str(again), name) == (str(caught.value), again.error_type)
        assert isinstance(again, SyncError)
    work.result[0] = lambda key, run: run
    assert [2, 2] == [await call(work), await call(work)], "an error is not kept for later calls"


@both
async def test_former_value_stays_if_a_computation_raises_an_exception(io) -> None:
    work = Function(io, ttl=0, stale=60, blocking_timeout=0)
    assert "7-1" == await call(work)
    work.result[0] = raised(OwnError())
    with pytest.raises(OwnError):
        await call(work)
    with computing("work:7"):
        assert "7-1" == await call(work)


@both
async def test_next_waiter_runs_if_the_call_that_ran_was_cancelled_or_interrupted(io, view) -> None:
    work = Function(io, ttl=60)
    work.result[0] = lambda key, run: raised(KeyboardInterrupt())(key, run) if run == 1 else run
    if repr(io) == "async":
        work.result[0] = lambda key, run: run
    first = await work.started()
    others = await work.followed(3)
    if repr(io) == "async":
        first.cancel()
    await io.sleep(0)
    work.go.set()
    with pytest.raises((KeyboardInterrupt, asyncio.CancelledError)):
        await io.result(first)
    assert [2] * 3 == [await io.result(one) for one in others]
    assert view("work:7").empty


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_call_that_is_interrupted_anywhere_stops_no_later_call_of_its_process() -> None:
    """A call is interrupted at each bytecode where Python handles signals. What it has acquired is
    free when its lease ends."""

    @single_flight("work:{key}", ttl=0, timeout=0.1, blocking_timeout=5)
    def work(key: int) -> int:
        return key

    files, places = ("engine/calls.py", "locks/flights.py", "locks/followers.py"), set()
    for place in interruptions(lambda: work(7), *files):
        places.add(place)
        assert 7 == work(7), place
    assert len(places) > 30


@both
async def test_cancelled_follower_changes_nothing(io) -> None:
    if repr(io) == "sync":
        pytest.skip("threads can't be cancelled")
    work = Function(io, ttl=60)
    first = await work.started()
    others = await work.followed(2)
    others[0].cancel()
    with pytest.raises(asyncio.CancelledError):
        await others[0]
    work.go.set()
    assert ["7-1"] * 2 == [await first, await others[1]]
    assert 0 == followers()


# Waits, other holders


@both
async def test_call_that_waits_too_long_raises_or_gets_the_former_value(io, view) -> None:
    work = Function(io, blocking_timeout=0.1)
    kept = Function(io, "kept:{key}", blocking_timeout=0, stale=300)
    assert ["7-1", "7-1"] == [await call(work), await call(kept)]
    with computing("work:7"), computing("kept:7"):
        with pytest.raises(NotAcquired, match="'work:7'") as caught:
            await call(work)
        assert "timeout" == caught.value.reason
        assert "7-1" == await call(kept)
        await forget(io, kept.shared, 7)
        with pytest.raises(NotAcquired) as caught:
            await call(kept)
        assert "full" == caught.value.reason
    assert ["7-2", "7-2"] == [await call(work), await call(kept)]
    assert view("work:7").empty


@both
async def test_follower_that_waits_too_long_raises_while_others_go_on(io) -> None:
    options = {"ttl": 60}
    work = Function(io, **options)
    first = await work.started()
    hasty = single_flight("work:{key}", blocking_timeout=0.05, **options)(work.shared.__wrapped__)
    with pytest.raises(NotAcquired) as caught:
        await call(hasty, 7)
    assert "timeout" == caught.value.reason
    work.go.set()
    assert ["7-1", "7-1"] == [await io.result(first), await call(hasty, 7)]


@both
async def test_waiter_goes_on_if_the_other_holder_ends_without_a_result(io, view) -> None:
    work = Function(io, ttl=60)
    other = await io.do(ReadWriteLock("work:7").write, "acquire")
    waiting = [work.start() for _ in range(3)]
    await until(io, lambda: view("work:7").waiting == 1)
    await io.do(other, "release")
    assert ["7-1"] * 3 == [await io.result(one) for one in waiting]


@both
async def test_all_waits_of_a_call_together_take_at_most_blocking_timeout(
    io, view, monkeypatch
) -> None:
    """After the first wait, whose end brings no result, another writer is next."""
    later = [0.0]
    monkeypatch.setattr(
        "django_redis_sync.locks.flights.clock", lambda: time.monotonic() + later[0]
    )
    work, write = Function(io, blocking_timeout=300), ReadWriteLock("work:7").write
    first = await io.do(write, "acquire")
    waiting = work.start()
    await until(io, lambda: view("work:7").waiting == 1)
    second = io.start(io.do(ReadWriteLock("work:7").write, "acquire"))
    await until(io, lambda: view("work:7").waiting == 2)
    later[0] = 301.0
    await io.do(first, "release")
    with pytest.raises(NotAcquired) as caught:
        await io.result(waiting)
    assert "timeout" == caught.value.reason
    await io.do(await io.result(second), "release")
    assert "7-1" == await call(work)


def test_call_does_not_wait_for_an_equal_call_whose_event_loop_has_stopped(
    view, monkeypatch
) -> None:
    monkeypatch.setattr("django_redis_sync.locks.followers.MAX_FOLLOW", 0.05)
    work, stop, go_on = Function(Sync()), threading.Event(), threading.Event()

    @single_flight("work:{key}")
    async def stuck(key: int) -> str:
        return "late"

    async def lead() -> None:
        leads = asyncio.create_task(stuck(7))
        await asyncio.to_thread(stop.wait)
        go_on.wait(60)  # this stops the event loop
        await leads

    loop = threading.Thread(target=lambda: asyncio.run(lead()))
    with computing("work:7"):
        loop.start()
        eventually(lambda: view("work:7").waiting == 1)
        stop.set()
        call_after = work.start()
        eventually(lambda: view("work:7").waiting == 2)
    assert "7-1" == Sync().run(Sync().result(call_after))
    go_on.set()
    loop.join()


@both
async def test_paused_name_lets_calls_wait_but_gives_results_that_are_kept(io, view) -> None:
    work = Function(io, ttl=60)
    assert ["7-1", "8-2"] == [await call(work, 7), await call(work, 8)]
    await forget(io, work.shared, 8)
    locks("pause", "work:8")
    locks("pause", "work:7")
    waiting = work.start(8)
    await until(io, lambda: view("work:8").waiting == 1)
    assert ["7-1", 2] == [await call(work, 7), work.runs]
    locks("resume", "work:8")
    assert "8-3" == await io.result(waiting)


@both
async def test_cleared_computation_is_not_stored_and_the_next_waiter_runs(
    io, view, monkeypatch
) -> None:
    monkeypatch.setattr("django_redis_sync.locks.followers.MAX_FOLLOW", 600)
    work, bad = Function(io, ttl=60), Function(io, "bad:{key}", ttl=60)
    bad.result[0] = lambda key, run: raised(ValueError("old"))(key, run) if run == 1 else run
    first, failing = await work.started(), await bad.started()
    others = await work.followed(2)
    after = bad.start()
    await until(io, lambda: followers() == 3)
    locks("pause", "bad:7")  # so that the first run raises before the next waiter looks
    for name in ("work:7", "bad:7"):
        view(name).clear()  # as `locks clear` does
    await until(io, lambda: work.runs == 2 and view("bad:7").waiting == 1, 60)
    for one in (work, bad):
        one.go.set()
    with pytest.raises(ValueError, match="old"):
        await io.result(failing)
    locks("resume", "bad:7")
    assert 2 == await io.result(after), "the exception of the cleared run was stored"
    assert "7-1" == await io.result(first)
    assert ["7-2"] * 2 == [await io.result(one) for one in others]
    assert "7-2" == await call(work)


@both
async def test_former_value_is_given_for_stale_seconds_only(io) -> None:
    work = Function(io, blocking_timeout=0, stale=1)
    assert "7-1" == await call(work)
    with computing("work:7"):
        assert "7-1" == await call(work)
        await io.sleep(1.1)
        with pytest.raises(NotAcquired):
            await call(work)


@pytest.fixture
def passed(settings, monkeypatch) -> Iterator[list[float]]:
    """The seconds that have passed for the cache "timed". A test changes them."""
    seconds, now = [0.0], time.time()
    clock = types.SimpleNamespace(time=lambda: now + seconds[0])
    for module in ("base", "locmem"):
        monkeypatch.setattr(f"django.core.cache.backends.{module}.time", clock)
    own = {"BACKEND": "django.core.cache.backends.locmem.LocMemCache", "LOCATION": "timed"}
    settings.CACHES = {**settings.CACHES, "timed": own}
    yield seconds
    caches["timed"].clear()


@pytest.mark.parametrize(
    ("ttl", "stale"), [(30, 40), (40, 30), (30, 3600), (600, 5), (3, 2), (600, 0), (0, 600)]
)
def test_value_is_fresh_for_ttl_and_former_for_stale_after_that(passed, ttl, stale) -> None:
    work = Function(Sync(), "timed:{key}", cache="timed", ttl=ttl, stale=stale, blocking_timeout=0)

    def got() -> str:
        try:
            return str(work())
        except NotAcquired:
            return "nothing"

    assert "7-1" == got()
    if ttl:
        passed[0] = ttl - 0.5
        assert "7-1" == got(), f"a value was not fresh for {ttl=}"
    with computing("timed:7"):
        if stale:
            for passed[0] in (ttl + 0.5, ttl + stale - 0.5):
                assert "7-1" == got(), f"after {passed[0]} s, with {ttl=} and {stale=}"
        passed[0] = ttl + stale + 0.5
        assert "nothing" == got(), f"after {passed[0]} s, with {ttl=} and {stale=}"
    passed[0] = 10_000
    assert ("7-2", 2) == (got(), work.runs), "the next call runs the function"


@both
async def test_result_of_a_run_of_hours_is_stored(io, passed) -> None:
    work = Function(io, "timed:{key}", cache="timed", ttl=5)
    first = await work.started()
    others = await work.followed(2)
    passed[0] = 20 * 3600
    work.go.set()
    assert ["7-1"] * 4 == [*[await io.result(one) for one in [first, *others]], await call(work)]


# Outages


@both
async def test_function_runs_or_the_call_raises_if_redis_is_down(io, alias_of) -> None:
    dead = alias_of(NOWHERE)
    runs = Function(io, using=dead, ttl=60)
    assert ["7-1", "7-1"] == [await call(runs), await call(runs)], "the cache still works"
    work = Function(io, "other:{key}", using=dead, on_outage="raise")
    with pytest.raises(Unavailable):
        await call(work)
    assert 0 == work.runs


@both
async def test_calls_of_a_process_share_the_outage_that_the_first_of_them_found(io, relay) -> None:
    """Otherwise, each would wait for Redis in turn."""
    fails = threading.Event()
    relay.answer("acquire", lambda *_: fails.wait(MAX_WAIT) and "-NOPERM no more")
    work = Function(io, using=relay.alias, on_outage="raise")
    first = work.start()
    await until(io, lambda: relay.verbs("acquire"))
    calls = [first, *await work.followed(3)]
    fails.set()
    for one in calls:
        with pytest.raises(Unavailable, match="no more"):
            await io.result(one)
    assert (1, 0) == (len(relay.verbs("acquire")), work.runs)


@both
async def test_calls_of_a_process_share_a_run_if_redis_is_down(io, alias_of) -> None:
    work = Function(io, using=alias_of(NOWHERE))
    first = await work.started()
    others = await work.followed(3)
    work.go.set()
    assert ["7-1"] * 4 == [await io.result(one) for one in [first, *others]]


@both
async def test_calls_run_at_once_if_the_cache_hides_that_it_is_down(io, settings) -> None:
    hides = {"LOCATION": NOWHERE, "OPTIONS": {"IGNORE_EXCEPTIONS": True}}
    own = {"BACKEND": "django_redis.cache.RedisCache", **hides}
    settings.CACHES = {**settings.CACHES, "own": own}
    work = Function(io, cache="own", ttl=60)
    work.go.clear()
    calls = [work.start() for _ in range(3)]
    await until(io, lambda: work.runs == 3)
    work.go.set()
    assert {"7-1", "7-2", "7-3"} >= {await io.result(one) for one in calls}


@both
async def test_function_runs_if_the_cache_is_down(io, alias_of, caplog, view, monkeypatch) -> None:
    work = Function(io, cache=alias_of(NOWHERE), ttl=60)

    def logged() -> list[bool]:
        found = [one.getMessage() for one in caplog.records if one.name == "django_redis_sync"]
        return ["failed" in message for message in found]

    assert ["7-1", "7-2"] == [await call(work), await call(work)]
    assert [True] == logged(), "not one error is logged, but one for each call"
    later = time.monotonic() + 3600
    monkeypatch.setattr("django_redis_sync.locks.flights.clock", lambda: later)
    assert ["7-3", "7-4"] == [await call(work), await call(work)]
    assert [True, True] == logged(), "an hour later, the error is logged again"
    assert view("work:7").empty
    with pytest.raises(Exception, match=r"127\.0\.0\.1"):
        await forget(io, work.shared, 7)


@both
async def test_value_that_cannot_be_stored_is_returned_and_one_error_is_logged(io, caplog) -> None:
    work = Function(io, ttl=60)
    work.result[0] = lambda key, run: threading.Lock()
    first = await work.started()
    others = await work.followed(2)
    work.go.set()
    values = [await io.result(one) for one in [first, *others]]
    assert 3 == len({*map(id, values)}) == work.runs
    (record,) = [one for one in caplog.records if one.levelno >= logging.ERROR]
    assert "the result of 'work:7' can't be stored in the cache 'default'" in record.getMessage()


@pytest.mark.parametrize(
    ("backend", "runs"),
    [("locmem.LocMemCache", 1), ("filebased.FileBasedCache", 1), ("dummy.DummyCache", 2)],
)
@both
async def test_any_cache_backend_stores_results(io, settings, tmp_path, backend, runs) -> None:
    path = f"django.core.cache.backends.{backend}"
    location = str(tmp_path) if "file" in backend else f"{io!r}"
    own = {"BACKEND": path, "LOCATION": location}
    settings.CACHES = {**settings.CACHES, "own": own}
    work = Function(io, cache="own", ttl=60)
    work.result[0] = lambda key, run: None
    assert [None] * 2 == [await call(work), await call(work)]
    assert runs == work.runs
    await forget(io, work.shared, 7)
    await call(work)
    assert runs + 1 == work.runs


class Dropping(LocMemCache):
    """A cache that silently drops large values, as Memcached does."""

    def set(self, key: str, value: Any, *args: Any, **options: Any) -> None:
        if "large" not in str(value):
            super().set(key, value, *args, **options)


@both
async def test_value_that_the_cache_drops_is_reported(io, settings, caplog) -> None:
    own = {"BACKEND": f"{Dropping.__module__}.Dropping", "LOCATION": f"drop-{io!r}"}
    settings.CACHES = {**settings.CACHES, "own": own}
    work = Function(io, cache="own", ttl=60)
    work.result[0] = lambda key, run: "large"
    assert ["large"] * 2 == [await call(work), await call(work)]
    assert 2 == len([one for one in caplog.records if "did not keep it" in one.getMessage()])


@both
async def test_results_are_shared_without_redis(io) -> None:
    work = Function(io, ttl=60)
    with without_redis():
        first = await work.started()
        others = await work.followed(2)
        work.go.set()
        assert ["7-1"] * 3 == [await io.result(one) for one in [first, *others]]
        await forget(io, work.shared, 7)
        assert ["7-2", "7-2"] == [await call(work), await call(work)]
    with without_redis():
        assert "7-3" == await call(work), "a block begins without results"


# Calls


@both
async def test_recursive_call_with_an_equal_name_runs_at_once(io) -> None:
    depths = []

    async def body(key: int, depth: int = 0) -> int:
        depths.append((key, depth))
        if depth < 2:
            return 1 + await call(shared, key, depth + 1) + await call(shared, key + 1, 2)
        return 0

    def plain(key: int, depth: int = 0) -> int:
        return io.run(body(key, depth))

    function = plain if repr(io) == "sync" else body
    shared: Any = single_flight("deep:{key}", ignore="depth", ttl=60, blocking_timeout=5)(function)
    assert 2 == await call(shared, 1)
    assert [(1, 0), (1, 1), (1, 2), (2, 2)] == depths
    assert [2, 4] == [await call(shared, 1), len(depths)]


def test_recursive_call_in_another_task_runs_at_once_but_not_after_the_run() -> None:
    runs, later = [], []

    @single_flight("tasks:{key}", ttl=0, blocking_timeout=5)
    async def work(key: int) -> Any:
        runs.append(key)
        if len(runs) == 1:
            later.append(asyncio.create_task(after()))
            return await asyncio.gather(asyncio.create_task(work(key)), work(key))
        return len(runs)

    ended = asyncio.Event()

    async def after() -> Any:
        await ended.wait()
        return await asyncio.gather(*(work(1) for _ in range(3)))

    async def main() -> None:
        assert [2, 3] == await work(1)
        ended.set()
        assert [4] * 3 == await later[0]

    asyncio.run(main())


class Report:
    runs = 0

    def __init__(self, pk: int) -> None:
        self.pk = pk

    @single_flight("report:{self.pk}:{page}", ttl=60)
    def page(self, page: int = 1) -> str:
        Report.runs += 1
        return f"{self.pk}-{page}-{Report.runs}"

    @single_flight("pages:{key}", ttl=60, ignore=["self"])
    async def shared(self, key: int) -> int:
        Report.runs += 1
        return Report.runs

    @classmethod
    @single_flight("of:{cls.__name__}", ttl=60)
    def of_class(cls) -> int:
        Report.runs += 1
        return Report.runs

    @staticmethod
    @single_flight("static:{key}", ttl=60)
    def static(key: int) -> int:
        Report.runs += 1
        return Report.runs


class Other(Report):
    pass


def test_methods_share_results_by_what_is_in_the_name() -> None:
    Report.runs = 0
    one, two = Report(1), Report(2)
    assert ["1-1-1", "2-1-2", "1-1-1"] == [one.page(), two.page(1), Report(1).page(page=1)]
    Report.page.forget(one, 1)
    assert ["1-1-3", "2-1-2"] == [one.page(), two.page()]
    assert [4, 4] == [asyncio.run(one.shared(5)), asyncio.run(two.shared(key=5))]
    one.shared.forget(key=5)
    assert 5 == asyncio.run(two.shared(5))
    one.shared.forget(self=two, key="unknown")  # by name, an ignored argument may be given, too
    assert [6, 7, 6] == [Report.of_class(), Other.of_class(), two.of_class()]
    assert [8, 8] == [Report.static(1), two.static(1)]
    Report.static.forget(1)
    assert 9 == one.static(key=1)
    with pytest.raises(TypeError, match="by name"):
        one.shared.forget(5)
    with pytest.raises(TypeError, match="missing a required argument"):
        one.page.forget(page=1)


def test_keyword_arguments_of_any_name_can_be_in_the_name() -> None:
    runs = []

    @single_flight("tenant:{tenant}", ttl=60, ignore="options")
    def work(**options: Any) -> int:
        runs.append(options)
        return len(runs)

    assert [1, 2, 1] == [work(tenant=1), work(tenant=2), work(tenant=1, color="red")]
    work.forget(tenant=1, color="red")
    assert [3, 2] == [work(tenant=1), work(tenant=2)]


def of(*names: str) -> Any:
    """Return a function with these parameters."""
    return eval(f"lambda {', '.join(names)}: None")


async def _agen(key: int) -> Any:
    yield key


WRONG = [
    ("x", {}, of("key"), ValueError, "calls with different key would share a result"),
    ("x:{key}", {}, of("key", "more=1"), ValueError, "different more would share"),
    ("x:{key}", {}, of("self", "key"), ValueError, 'add ignore="self"'),
    ("x:{key}", {}, of("key", "*more"), ValueError, r"different \*more would share"),
    ("x:{more[0]}", {}, of("*more"), ValueError, r"different \*more would share"),
    ("x:{key}", {}, of("key", "**more"), ValueError, r"different \*more would share"),
    ("x:{key}", {}, of("key", "*", "more"), ValueError, "different more would share"),
    ("x:{key}", {"ignore": "kye"}, of("key"), ValueError, "no parameter kye"),
    ("x:{key}", {"ignore": "key"}, of("key"), ValueError, "also in ignore"),
    ("x:{kye}", {}, of("key"), ValueError, "has no argument kye"),
    ("x:{key}{more}", {}, of("key", "more"), ValueError, "put a ':'"),
    ("x", {}, _agen, TypeError, "generator"),
    ("x", {}, type, TypeError, "single_flight is for functions"),
    ("x", {}, types.SimpleNamespace(delay=print), TypeError, "put @single_flight below"),
    ("x", {}, staticmethod(of()), TypeError, "put @single_flight below @staticmethod"),
    ("x", {"limit": 2}, of(), TypeError, "limit"),
    ("x", {"ttl": -1}, of(), ValueError, "ttl must be 0 or more"),
    ("x", {"ttl": float("inf")}, of(), ValueError, "ttl must be finite"),
    ("x", {"ttl": "60"}, of(), TypeError, "ttl must be a number"),
    ("x", {"stale": None}, of(), TypeError, "stale must be a number"),
    ("x", {"on_outage": "open"}, of(), ValueError, "on_outage must be one of"),
    ("x", {"cache": None}, of(), TypeError, "cache must be"),
    ("x", {"timeout": 0}, of(), ValueError, "timeout"),
    ("x", {"using": ["a", "b", "c"]}, of(), ImproperlyConfigured, "quorum"),
    (of(), {}, of(), TypeError, "needs a name"),
]


@pytest.mark.parametrize(("name", "options", "function", "kind", "text"), WRONG)
def test_wrong_decorator_raises_at_import(name, options, function, kind, text) -> None:
    with pytest.raises(kind, match=text):
        single_flight(name, **options)(function)


@pytest.mark.parametrize(
    ("name", "options", "names"),
    [
        ("x", {}, ()),
        ("x:{key.pk}:{more[0]}", {}, ("key", "/", "more")),
        ("x:{key}", {"ignore": ["self", "more", "options"]}, ("self", "key", "*more", "**options")),
        ("x", {"ignore": "self", "timeout": 5, "label": "a", "stale": 1.5, "ttl": 0.5}, ("self",)),
    ],
)
def test_decorator_accepts_functions_whose_parameters_are_all_named(name, options, names) -> None:
    function = single_flight(name, **options)(of(*names))
    assert inspect.isfunction(function)


def test_decorated_function_keeps_its_name_and_signature() -> None:
    def work(key: int) -> int:
        return key

    shared = single_flight("x:{key}")(work)
    assert ("work", work) == (shared.__name__, shared.__wrapped__)
    assert inspect.signature(work) == inspect.signature(shared)


def test_coroutine_can_be_awaited_once_and_a_sync_function_may_not_return_one(view) -> None:
    @single_flight("once")
    async def work() -> int:
        return 1

    async def main() -> None:
        coroutine = work()
        assert 1 == await coroutine
        with pytest.raises(RuntimeError, match="reuse"):
            await coroutine

    asyncio.run(main())
    hidden = single_flight("hidden")(lambda: work())
    with pytest.raises(TypeError, match="decorate an `async def` function"):
        hidden()
    assert view("hidden").empty
    assert 1 == asyncio.run(single_flight("partial")(functools.partial(work))())


def test_sync_function_on_an_event_loop_raises_instead_of_stopping_the_loop() -> None:
    shared = single_flight("loop", ttl=60)(of())

    async def main() -> None:
        for _ in range(2):  # also if the result is stored: otherwise the error would come later
            with pytest.raises(SynchronousOnlyOperation, match=r"with sync_to_async, or decorate"):
                shared()
            await sync_to_async(shared)()

    asyncio.run(main())


def test_threads_and_event_loops_of_a_process_share_results() -> None:
    runs, go = [], threading.Event()

    def body(key: int) -> int:
        runs.append(key)
        assert go.wait(30)
        return len(runs)

    shared = single_flight("mixed:{key}", ttl=0)(body)

    @single_flight("mixed:{key}", ttl=0)
    async def other(key: int) -> int:
        pytest.fail("the other function ran")

    results: list[Any] = []
    threads = [
        threading.Thread(target=lambda: results.append(shared(1))),
        threading.Thread(target=lambda: results.append(asyncio.run(other(1)))),
    ]
    threads[0].start()
    eventually(lambda: runs)
    threads[1].start()
    eventually(lambda: followers() == 1)
    go.set()
    for thread in threads:
        thread.join()
    assert [1, 1] == results


class Slow(LocMemCache):
    """A cache whose first look does not end before `go` is set."""

    looks, begun, go = itertools.count(), threading.Event(), threading.Event()

    def get_many(self, *args: Any, **options: Any) -> Any:
        if next(self.looks) == 0:
            self.begun.set()
            assert self.go.wait(30)
        return super().get_many(*args, **options)


@pytest.mark.parametrize("cancelled", [0, 1], ids=["of the look", "of a later look"])
def test_slow_look_and_a_cancelled_request_change_nothing_for_other_requests(
    settings, cancelled
) -> None:
    Slow.looks, Slow.begun, Slow.go = itertools.count(), threading.Event(), threading.Event()
    own = {"BACKEND": f"{Slow.__module__}.Slow", "LOCATION": f"slow-{next(_numbers)}"}
    settings.CACHES = {**settings.CACHES, "own": own}

    @single_flight("slow:{key}", ttl=60, cache="own")
    async def shared(key: int) -> int:
        return key

    async def request(key: int) -> int:
        async with ThreadSensitiveContext():  # as Django's ASGI handler has one for each request
            return await shared(key)

    async def main() -> list[Any]:
        requests = [asyncio.create_task(request(key)) for key in range(8)]
        while not Slow.begun.is_set():
            await asyncio.sleep(0.001)
        leaves = threading.Thread(target=lambda: (has_left.wait(30), Slow.go.set()))
        leaves.start()
        has_left.set()
        requests[cancelled].cancel()
        return await asyncio.gather(*requests, return_exceptions=True)

    has_left = threading.Event()
    results = asyncio.run(main())
    assert isinstance(results.pop(cancelled), asyncio.CancelledError)
    assert [key for key in range(8) if key != cancelled] == results


def test_unknown_cache_is_an_error_of_check_and_at_the_call(settings) -> None:
    shared = single_flight("unknown", cache="nowhere")(of())
    with pytest.raises(ImproperlyConfigured, match="nowhere"):
        shared()
    found = [one for one in run_checks() if one.id == "redis_sync.E034"]
    assert any(f"{__name__}.<lambda>: " in one.msg and "'nowhere'" in one.msg for one in found)
    settings.CACHES = {**settings.CACHES, "nowhere": settings.CACHES["default"]}
    assert not any("nowhere" in one.msg for one in run_checks())


@pytest.mark.parametrize(("backend", "warns"), [("locmem.LocMemCache", 1), ("db.DatabaseCache", 0)])
def test_deploy_check_warns_of_a_cache_that_processes_do_not_share(
    settings, backend: str, warns: bool
) -> None:
    single_flight("alone", cache="alone")(of())
    alone = {"BACKEND": f"django.core.cache.backends.{backend}", "LOCATION": "alone"}
    settings.CACHES = {**settings.CACHES, "alone": alone}
    for deploys in (True, False):
        found = run_checks(tags=["redis_sync"], include_deployment_checks=deploys)
        said = [one.msg for one in found if one.id == "redis_sync.W036" and "'alone'" in one.msg]
        assert len(said) == (warns and deploys)


def test_code_without_single_flight_does_not_import_it() -> None:
    code = (
        "import os, sys, django; django.setup(); "
        "from django_redis_sync import Lock, synchronized; Lock('x').acquire().release(); "
        "synchronized('y')(lambda: 1)(); "
        "print([one for one in sys.modules if 'flight' in one or one.endswith('locks.results')])"
    )
    environment = {**os.environ, "DJANGO_SETTINGS_MODULE": "tests.settings"}
    words = [sys.executable, "-c", code]
    assert "[]\n" == subprocess.check_output(words, text=True, env=environment)


def test_call_that_finds_a_result_sends_one_command() -> None:
    shared = single_flight("hit:{key}", ttl=60)(of("key"))
    shared(1)
    with sent() as commands:
        shared(1)
    assert {"mget": 1} == commands.by_name


def test_method_decorator_around_single_flight_is_refused_with_a_remedy() -> None:
    shares = single_flight("report:{self.pk}")
    for decorate, decorated in (
        (method_decorator(shares), lambda self: 1),
        (method_decorator(shares, name="totals"), type("Of", (), {"totals": lambda self: 1})),
    ):
        with pytest.raises(TypeError, match="directly on the method, without method_decorator"):
            decorate(decorated)
