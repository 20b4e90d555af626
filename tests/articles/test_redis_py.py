"""Migrate code from `cache.lock(...)` to `Lock(...)`.

The first part runs the same code with both locks. The second part asserts differences that
docs/migrating.md lists. tests/behaviour proves the statements of that page about `Lock`.
"""

from __future__ import annotations

import functools
from typing import Any

import pytest
from django.core.cache import cache
from redis.exceptions import LockError, LockNotOwnedError

from django_redis_sync import Lock
from tests.behaviour.both import Async, Sync, both
from tests.behaviour.watching import View

pytestmark = [pytest.mark.tools, pytest.mark.usefixtures("clean_redis")]


def redis_py(name: str, **options: Any) -> Any:
    """Return redis-py's lock, as `cache.lock()` does, but without a prefix in its key."""
    return cache.client.get_client(write=True).lock(name, **options)


def with_both_libraries(test: Any) -> Any:
    """Parametrize a test with redis-py's lock, `Lock` in sync code, and `Lock` in async code."""

    @functools.wraps(test)
    def run(io: Any, make: Any, **fixtures: Any) -> None:
        io.run(test(io=io, make=make, **fixtures))

    kinds = [(Sync(), redis_py), (Sync(), Lock), (Async(), Lock)]
    return pytest.mark.parametrize(("io", "make"), kinds, ids=["redis-py", "sync", "async"])(run)


@with_both_libraries
async def test_lock_excludes_other_callers_until_its_release(io, make) -> None:
    lock, other = make("name", timeout=10), make("name", timeout=10, blocking=False)
    assert not await io.do(lock, "locked") and not await io.do(lock, "owned")
    assert await io.do(lock, "acquire")
    assert await io.do(lock, "locked") and await io.do(lock, "owned")
    for options in ({"blocking": False}, {"blocking_timeout": 0.05}):
        assert not await io.do(make("name", timeout=10, sleep=0.01, **options), "acquire")
        assert not await io.do(make("name", timeout=10, sleep=0.01), "acquire", **options)
        with pytest.raises(LockError):
            async with io.entered(make("name", timeout=10, sleep=0.01, **options)):
                pytest.fail("two callers are in the block")
    assert not await io.do(other, "owned")
    assert await io.do(lock, "release") is None
    assert not await io.do(lock, "locked")
    with pytest.raises(ZeroDivisionError):
        async with io.entered(other):
            raise ZeroDivisionError
    assert not await io.do(lock, "locked"), "the block did not release it"


@with_both_libraries
async def test_waiter_acquires_the_lock_when_the_lease_expires(io, make, caplog) -> None:
    first, second = make("name", timeout=0.2), make("name", timeout=10, sleep=0.01)
    assert await io.do(first, "acquire")
    assert await io.do(second, "acquire", blocking_timeout=20)
    with pytest.raises(LockNotOwnedError):
        await io.do(first, "release")
    assert not await io.do(first, "owned") and await io.do(second, "owned")
    with pytest.raises(LockNotOwnedError):
        async with io.entered(make("other", timeout=0.05)):
            await io.sleep(0.1)
    caplog.clear()
    async with io.entered(make("other", timeout=0.05, raise_on_release_error=False)):
        await io.sleep(0.1)
    assert [] != caplog.records


@with_both_libraries
async def test_extend_and_reacquire_change_only_a_held_lease(io, make, raw) -> None:
    lock, calls = make("name", timeout=10), (["extend", 10], ["reacquire"], ["release"])

    def left() -> float:
        return raw.pttl("name") / 1000 if make is redis_py else View(raw, "name").ends_in

    for method, *args in calls:
        with pytest.raises(LockError):
            await io.do(lock, method, *args)
    await io.do(lock, "acquire")
    assert await io.do(lock, "extend", 20) is True
    assert 20 < left() <= 30
    assert await io.do(lock, "reacquire") is True
    assert 0 < left() <= 10
    assert await io.do(lock, "extend", 2, replace_ttl=True) is True
    await io.sleep(2.1)
    for method, *args in calls:
        with pytest.raises(LockNotOwnedError):
            await io.do(lock, method, *args)


@both
async def test_arguments_and_results_of_acquire_differ_from_those_of_redis_py(io, raw) -> None:
    old = cache.lock("name")
    assert old.acquire(token="mine")
    (key,) = raw.keys("*name*")
    assert -1 == raw.pttl(key)
    # The locks of the two libraries do not exclude each other. `Lock` ignores `sleep`, and its
    # `acquire` returns a lease, or None.
    lease = await io.do(Lock("name", sleep=5, blocking=False), "acquire", sleep=5)
    assert 0 < lease.remaining <= 30
    for method, *args in (["extend", 10], ["reacquire"]):
        with pytest.raises(LockError, match="no timeout"):
            getattr(old, method)(*args)
        assert await io.do(lease, method, *args) is True
    # The first argument of `acquire` is `blocking`, as in `threading`. In redis-py, it is `sleep`.
    assert await io.do(Lock("name"), "acquire", False) is None
    # redis-py fails at once if `sleep` is longer than `blocking_timeout`.
    assert not cache.lock("name", sleep=10, blocking_timeout=5).acquire()
    await io.do(Lock("short", timeout=0.1), "acquire")
    assert await io.do(Lock("short", sleep=10, blocking_timeout=20), "acquire")


@both
async def test_errors_at_the_end_of_a_with_block_differ_from_those_of_redis_py(io) -> None:
    old, lock = cache.lock("redis_py", timeout=10), Lock("library")
    with pytest.raises(LockError, match="already unlocked"), old:
        old.release()
    async with io.entered(lock):
        await io.do(lock, "release")
    with pytest.raises(LockNotOwnedError), cache.lock("redis_py", timeout=0.05):
        await io.sleep(0.1)
        raise ZeroDivisionError
    with pytest.raises(ZeroDivisionError):
        async with io.entered(Lock("library", timeout=0.05)):
            await io.sleep(0.1)
            raise ZeroDivisionError
