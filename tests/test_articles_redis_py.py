"""`cache.lock(...)` becomes `Lock(...)`: the same code does the same, but for what is stated.

The first part runs the same body against both; the second asserts each difference that
docs/migrating.md lists.
"""

from __future__ import annotations

import inspect
from typing import Any

import pytest
import redis
import redis.asyncio
from django.core.cache import cache
from redis.exceptions import LockError, LockNotOwnedError

from django_redis_sync import LeaseLost, Lock, NotAcquired

from .behaviour.both import both
from .behaviour.watching import View

pytestmark = [pytest.mark.tools, pytest.mark.usefixtures("clean_redis")]


class AsyncTheirs:
    """redis.asyncio's lock, with the names of our twins."""

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


class Maker:
    """Makes locks of redis-py, or ours, for sync or async code."""

    def __init__(self, io: Any, kind: str, url: str) -> None:
        self.io, self.kind = io, kind
        self.client = redis.asyncio.Redis.from_url(url) if repr(io) == "async" else None

    def __call__(self, name: str, **options: Any) -> Any:
        if self.kind == "ours":
            return Lock(name, **options)
        if self.client is not None:
            return AsyncTheirs(self.client.lock(name, **options))
        if "raise_on_release_error" in options:  # cache.lock does not know it
            return cache.client.get_client(write=True).lock(name, **options)
        return cache.lock(name, **options)

    async def __aenter__(self) -> Maker:
        return self

    async def __aexit__(self, *error: Any) -> None:
        if self.client is not None:
            await self.client.aclose()


def same(test: Any) -> Any:
    """A body for both libraries, in sync and async code."""
    return pytest.mark.parametrize("kind", ["theirs", "ours"])(both(test))


# The same


@same
async def test_acquire_and_release(io, kind, redis_url) -> None:
    async with Maker(io, kind, redis_url) as make:
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


@same
async def test_blocking_and_its_timeout(io, kind, redis_url) -> None:
    async with Maker(io, kind, redis_url) as make:
        await io.do(make("name", timeout=10), "acquire")
        for options in ({"blocking": False}, {"blocking_timeout": 0.05}):
            assert not await io.do(make("name", timeout=10, sleep=0.01, **options), "acquire")
            assert not await io.do(make("name", timeout=10, sleep=0.01), "acquire", **options)
        with pytest.raises(LockError):
            async with io.entered(make("name", timeout=10, blocking_timeout=0.05)):
                pytest.fail("two are in")


@same
async def test_who_waits_gets_it_when_the_lease_is_over(io, kind, redis_url) -> None:
    async with Maker(io, kind, redis_url) as make:
        first, second = make("name", timeout=0.2), make("name", timeout=10, sleep=0.01)
        assert await io.do(first, "acquire")
        assert await io.do(second, "acquire", blocking_timeout=20)
        with pytest.raises(LockNotOwnedError):
            await io.do(first, "release")
        assert not await io.do(first, "owned") and await io.do(second, "owned")


@same
async def test_extend_and_reacquire(io, kind, redis_url) -> None:
    async with Maker(io, kind, redis_url) as make:
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


@same
async def test_leaving_a_block_whose_lease_is_over(io, kind, redis_url, caplog) -> None:
    async with Maker(io, kind, redis_url) as make:
        with pytest.raises(LockNotOwnedError):
            async with io.entered(make("name", timeout=0.05)):
                await io.sleep(0.1)
        async with io.entered(make("name", timeout=0.05, raise_on_release_error=False)):
            await io.sleep(0.1)
        assert [] != caplog.records


@pytest.mark.parametrize("kind", ["theirs", "ours"])
@pytest.mark.parametrize("thread_local", [True, False])
def test_thread_local(kind: str, thread_local: bool, redis_url) -> None:
    import threading

    from .behaviour.both import Sync

    lock = Maker(Sync(), kind, redis_url)("name", timeout=10, thread_local=thread_local)
    lock.acquire()
    said: list[Any] = []

    def other() -> None:
        try:
            said.append(lock.release())
        except Exception as error:
            said.append(type(error))

    thread = threading.Thread(target=other)
    thread.start()
    thread.join(30)
    # Nobody releases what another thread took; redis-py says so by accident.
    refused = NotAcquired if kind == "ours" else AttributeError
    assert [refused if thread_local else None] == said
    assert thread_local == lock.locked()


@same
async def test_the_bodys_exception_releases(io, kind, redis_url) -> None:
    async with Maker(io, kind, redis_url) as make:
        lock = make("name", timeout=10)
        with pytest.raises(ZeroDivisionError):
            async with io.entered(lock):
                raise ZeroDivisionError
        assert not await io.do(lock, "locked")


# Different


@both
async def test_our_errors_are_subclasses_of_theirs(io) -> None:
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
async def test_acquire_says_more_than_yes_and_no(io) -> None:
    lease = await io.do(Lock("name", blocking=False), "acquire")
    assert lease and lease is not True
    assert await io.do(Lock("name", blocking=False), "acquire") is None


@both
async def test_no_timeout_is_a_renewed_lease_and_not_an_eternal_one(io, raw) -> None:
    cache.lock("theirs").acquire()
    (key,) = raw.keys("*theirs*")
    assert -1 == raw.pttl(key)
    lease = await io.do(Lock("ours"), "acquire")
    assert 0 < View(raw, "ours").ends_in <= 30
    assert lease.remaining <= 30


@both
async def test_without_a_timeout_extend_and_reacquire_work(io) -> None:
    theirs, ours = cache.lock("name"), Lock("name")
    theirs.acquire()
    await io.do(ours, "acquire")
    for method, *args in (["extend", 10], ["reacquire"]):
        with pytest.raises(LockError, match="no timeout"):
            getattr(theirs, method)(*args)
        assert await io.do(ours, method, *args) is True


@both
async def test_old_and_new_code_do_not_exclude_each_other(io) -> None:
    assert cache.lock("name", timeout=10).acquire()
    assert await io.do(Lock("name", blocking=False), "acquire")


@both
async def test_a_token_of_ones_own_is_refused(io) -> None:
    assert cache.lock("name", timeout=10).acquire(token="mine")
    with pytest.raises(TypeError, match="token"):
        await io.do(Lock("name"), "acquire", token="mine")


@both
async def test_sleep_is_accepted_and_not_needed(io) -> None:
    assert await io.do(Lock("name", sleep=5), "acquire", sleep=5)


@both
async def test_the_first_argument_of_acquire_is_blocking(io) -> None:
    """As in threading; in redis-py it is `sleep`."""
    async with io.entered(Lock("name")):
        assert await io.do(Lock("name"), "acquire", False) is None


@both
async def test_a_short_wait_is_waited(io) -> None:
    """redis-py gives up at once when its sleep is longer."""
    cache.lock("theirs", timeout=0.1).acquire()
    assert cache.lock("theirs", sleep=10, blocking_timeout=5).acquire() is False
    await io.do(Lock("ours", timeout=0.1), "acquire")
    assert await io.do(Lock("ours", sleep=10, blocking_timeout=20), "acquire")


@both
async def test_a_release_inside_the_block_is_no_error(io) -> None:
    theirs = cache.lock("theirs", timeout=10)
    with pytest.raises(LockError, match="already unlocked"), theirs:
        theirs.release()
    ours = Lock("ours")
    async with io.entered(ours):
        await io.do(ours, "release")


@both
async def test_a_lost_lease_never_hides_the_bodys_exception(io) -> None:
    with pytest.raises(LockNotOwnedError), cache.lock("theirs", timeout=0.05):
        await io.sleep(0.1)
        raise ZeroDivisionError
    with pytest.raises(ZeroDivisionError):
        async with io.entered(Lock("ours", timeout=0.05)):
            await io.sleep(0.1)
            raise ZeroDivisionError


@both
async def test_one_object_can_hold_several_leases(io) -> None:
    """What is taken through it is remembered as a stack, not as one token."""
    lock = Lock("name", timeout=0.1)
    await io.do(lock, "acquire")
    newer = await io.do(lock, "acquire", blocking_timeout=20)
    await io.do(lock, "release")
    assert not newer.held


@both
async def test_the_order_of_asking_is_kept(io, raw) -> None:
    from .behaviour.both import until

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
