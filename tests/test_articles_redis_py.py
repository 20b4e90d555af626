"""Code that is migrated from `cache.lock(...)` to `Lock(...)`.

The first part runs the same code with both. The second part asserts each difference that
docs/migrating.md lists.
"""

from __future__ import annotations

import inspect
import threading
from typing import Any

import pytest
import redis
import redis.asyncio
from django.core.cache import cache
from redis.exceptions import LockError, LockNotOwnedError

from django_redis_sync import LeaseLost, Lock, NotAcquired

from .behaviour.both import Sync, both, until
from .behaviour.watching import View

pytestmark = [pytest.mark.tools, pytest.mark.usefixtures("clean_redis")]


class AsyncRedisPyLock:
    """A lock of redis.asyncio whose methods have the names of `Lock`'s async methods."""

    def __init__(self, lock: Any) -> None:
        self.lock = lock

    def __getattr__(self, name: str) -> Any:
        method = getattr(self.lock, name.removeprefix("a"))

        async def call(*args: Any, **kwargs: Any) -> Any:
            result = method(*args, **kwargs)
            return await result if inspect.isawaitable(result) else result

        return call

    async def __aenter__(self) -> Any:
        return await self.lock.__aenter__()

    async def __aexit__(self, *error: Any) -> Any:
        return await self.lock.__aexit__(*error)


class LockFactory:
    """Factory of locks of redis-py or of this library, for sync or async code."""

    def __init__(self, io: Any, kind: str, url: str) -> None:
        self.io, self.kind = io, kind
        self.client = redis.asyncio.Redis.from_url(url) if repr(io) == "async" else None

    def __call__(self, name: str, **options: Any) -> Any:
        if self.kind == "library":
            return Lock(name, **options)
        if self.client is not None:
            return AsyncRedisPyLock(self.client.lock(name, **options))
        if "raise_on_release_error" in options:  # cache.lock() does not accept this option
            return cache.client.get_client(write=True).lock(name, **options)
        return cache.lock(name, **options)

    async def __aenter__(self) -> LockFactory:
        return self

    async def __aexit__(self, *error: Any) -> None:
        if self.client is not None:
            await self.client.aclose()


def for_both_libraries(test: Any) -> Any:
    """Run a test with both libraries, in sync and async code."""
    return pytest.mark.parametrize("kind", ["redis_py", "library"])(both(test))


# The same behavior


@for_both_libraries
async def test_lock_excludes_another_until_it_is_released(io, kind, redis_url) -> None:
    async with LockFactory(io, kind, redis_url) as make:
        lock = make("name", timeout=10)
        assert not await io.do(lock, "locked") and not await io.do(lock, "owned")
        assert await io.do(lock, "acquire")
        assert await io.do(lock, "locked") and await io.do(lock, "owned")
        other = make("name", timeout=10, blocking=False)
        assert not await io.do(other, "acquire")
        assert await io.do(other, "locked") and not await io.do(other, "owned")
        assert await io.do(lock, "release") is None
        assert not await io.do(lock, "locked")
        assert await io.do(other, "acquire")


@for_both_libraries
async def test_acquire_of_a_taken_lock_fails_at_once_or_after_its_timeout(
    io, kind, redis_url
) -> None:
    async with LockFactory(io, kind, redis_url) as make:
        await io.do(make("name", timeout=10), "acquire")
        for options in ({"blocking": False}, {"blocking_timeout": 0.05}):
            assert not await io.do(make("name", timeout=10, sleep=0.01, **options), "acquire")
            assert not await io.do(make("name", timeout=10, sleep=0.01), "acquire", **options)
        with pytest.raises(LockError):
            async with io.entered(make("name", timeout=10, blocking_timeout=0.05)):
                pytest.fail("two are in")


@for_both_libraries
async def test_waiter_acquires_the_lock_when_the_lease_expires(io, kind, redis_url) -> None:
    async with LockFactory(io, kind, redis_url) as make:
        first, second = make("name", timeout=0.2), make("name", timeout=10, sleep=0.01)
        assert await io.do(first, "acquire")
        assert await io.do(second, "acquire", blocking_timeout=20)
        with pytest.raises(LockNotOwnedError):
            await io.do(first, "release")
        assert not await io.do(first, "owned") and await io.do(second, "owned")


@for_both_libraries
async def test_extend_and_reacquire_prolong_only_a_held_lease(io, kind, redis_url) -> None:
    async with LockFactory(io, kind, redis_url) as make:
        lock = make("name", timeout=0.25)
        for method, *args in (["extend", 10], ["reacquire"], ["release"]):
            with pytest.raises(LockError):
                await io.do(lock, method, *args)
        await io.do(lock, "acquire")
        assert await io.do(lock, "extend", 20) is True
        assert await io.do(lock, "extend", 10, replace_ttl=True) is True
        await io.sleep(0.3)
        assert await io.do(lock, "owned")
        assert await io.do(lock, "reacquire") is True
        await io.sleep(0.3)
        for method, *args in (["extend", 10], ["reacquire"], ["release"]):
            with pytest.raises(LockNotOwnedError):
                await io.do(lock, method, *args)


@for_both_libraries
async def test_block_raises_or_logs_on_exit_when_its_lease_expired(
    io, kind, redis_url, caplog
) -> None:
    async with LockFactory(io, kind, redis_url) as make:
        with pytest.raises(LockNotOwnedError):
            async with io.entered(make("name", timeout=0.05)):
                await io.sleep(0.1)
        async with io.entered(make("name", timeout=0.05, raise_on_release_error=False)):
            await io.sleep(0.1)
        assert [] != caplog.records


@pytest.mark.parametrize("kind", ["redis_py", "library"])
@pytest.mark.parametrize("thread_local", [True, False])
def test_thread_local_lock_is_not_released_by_another_thread(
    kind: str, thread_local: bool, redis_url
) -> None:
    lock = LockFactory(Sync(), kind, redis_url)("name", timeout=10, thread_local=thread_local)
    lock.acquire()
    results: list[Any] = []

    def other() -> None:
        try:
            results.append(lock.release())
        except Exception as error:
            results.append(type(error))

    thread = threading.Thread(target=other)
    thread.start()
    thread.join(30)
    # redis-py raises AttributeError by accident.
    error = NotAcquired if kind == "library" else AttributeError
    assert [error if thread_local else None] == results
    assert thread_local == lock.locked()


@for_both_libraries
async def test_exception_in_a_block_releases_the_lock(io, kind, redis_url) -> None:
    async with LockFactory(io, kind, redis_url) as make:
        lock = make("name", timeout=10)
        with pytest.raises(ZeroDivisionError):
            async with io.entered(lock):
                raise ZeroDivisionError
        assert not await io.do(lock, "locked")


# Differences


@both
async def test_errors_are_subclasses_of_redis_py_errors(io) -> None:
    assert (LockError, LockNotOwnedError) == (NotAcquired.__bases__[1], LeaseLost.__bases__[1])
    lock = Lock("name", timeout=0.05)
    with pytest.raises(LockError) as caught:
        await io.do(lock, "release")
    assert NotAcquired is type(caught.value)
    await io.do(lock, "acquire")
    with pytest.raises(LockError) as caught:
        async with io.entered(Lock("name", blocking=False)):
            pytest.fail("two are in")
    assert NotAcquired is type(caught.value)
    assert not isinstance(caught.value, LockNotOwnedError)
    await io.sleep(0.1)
    with pytest.raises(LockNotOwnedError) as caught:
        await io.do(lock, "release")
    assert LeaseLost is type(caught.value)


@both
async def test_acquire_returns_a_lease_or_none(io) -> None:
    lease = await io.do(Lock("name", blocking=False), "acquire")
    assert lease and lease is not True
    assert await io.do(Lock("name", blocking=False), "acquire") is None


@both
async def test_lock_without_timeout_has_a_lease_that_expires(io, raw) -> None:
    cache.lock("redis_py").acquire()
    (key,) = raw.keys("*redis_py*")
    assert -1 == raw.pttl(key)
    lease = await io.do(Lock("library"), "acquire")
    assert 0 < View(raw, "library").ends_in <= 30
    assert lease.remaining <= 30


@both
async def test_extend_and_reacquire_work_without_a_timeout(io) -> None:
    redis_py_lock, lock = cache.lock("name"), Lock("name")
    redis_py_lock.acquire()
    await io.do(lock, "acquire")
    for method, *args in (["extend", 10], ["reacquire"]):
        with pytest.raises(LockError, match="no timeout"):
            getattr(redis_py_lock, method)(*args)
        assert await io.do(lock, method, *args) is True


@both
async def test_lock_and_redis_py_lock_do_not_exclude_each_other(io) -> None:
    assert cache.lock("name", timeout=10).acquire()
    assert await io.do(Lock("name", blocking=False), "acquire")


@both
async def test_acquire_rejects_a_token_argument(io) -> None:
    assert cache.lock("name", timeout=10).acquire(token="mine")
    with pytest.raises(TypeError, match="token"):
        await io.do(Lock("name"), "acquire", token="mine")


@both
async def test_lock_accepts_but_ignores_sleep(io) -> None:
    assert await io.do(Lock("name", sleep=5), "acquire", sleep=5)


@both
async def test_first_argument_of_acquire_is_blocking(io) -> None:
    """The same as in `threading`. In redis-py, the first argument is `sleep`."""
    async with io.entered(Lock("name")):
        assert await io.do(Lock("name"), "acquire", False) is None


@both
async def test_blocking_timeout_shorter_than_sleep_is_waited_for(io) -> None:
    """redis-py fails at once if `sleep` is longer than `blocking_timeout`."""
    cache.lock("redis_py", timeout=0.1).acquire()
    assert cache.lock("redis_py", sleep=10, blocking_timeout=5).acquire() is False
    await io.do(Lock("library", timeout=0.1), "acquire")
    assert await io.do(Lock("library", sleep=10, blocking_timeout=20), "acquire")


@both
async def test_release_inside_the_block_is_allowed(io) -> None:
    redis_py_lock = cache.lock("redis_py", timeout=10)
    with pytest.raises(LockError, match="already unlocked"), redis_py_lock:
        redis_py_lock.release()
    lock = Lock("library")
    async with io.entered(lock):
        await io.do(lock, "release")


@both
async def test_lost_lease_does_not_hide_the_exception_of_the_block(io) -> None:
    with pytest.raises(LockNotOwnedError), cache.lock("redis_py", timeout=0.05):
        await io.sleep(0.1)
        raise ZeroDivisionError
    with pytest.raises(ZeroDivisionError):
        async with io.entered(Lock("library", timeout=0.05)):
            await io.sleep(0.1)
            raise ZeroDivisionError


@both
async def test_one_lock_object_can_hold_several_leases(io) -> None:
    """`release()` releases the newest lease of the object."""
    lock = Lock("name", timeout=0.1)
    await io.do(lock, "acquire")
    newer = await io.do(lock, "acquire", blocking_timeout=20)
    await io.do(lock, "release")
    assert not newer.held


@both
async def test_lock_is_granted_in_the_order_of_the_requests(io, raw) -> None:
    order: list[int] = []

    async def caller(number: int) -> None:
        async with io.entered(Lock("order")):
            order.append(number)

    crowd = []
    async with io.entered(Lock("order")):
        for number in range(5):
            crowd.append(io.start(caller(number)))
            await until(io, lambda number=number: View(raw, "order").waiting == number + 1)
    for one in crowd:
        await io.result(one)
    assert list(range(5)) == order
