"""The thread or task that holds an RLock can acquire the RLock again."""

from __future__ import annotations

import asyncio
import gc
import time
from typing import Any

import pytest
from django.db import transaction

from django_redis_sync import LeaseLost, Lock, NotAcquired, RLock, Semaphore, acquire_all
from tests.behaviour.both import both, until
from tests.support import worker_processes

pytestmark = [pytest.mark.usefixtures("clean_redis"), pytest.mark.promise(16)]


async def free_elsewhere(io: Any, name: str) -> bool:
    """Return True if another thread or task can acquire the RLock now."""

    async def other() -> bool:
        lease = await io.do(RLock(name, blocking=False), "acquire")
        if lease:
            await io.do(lease, "release")
        return lease is not None

    return await io.result(io.start(other()))


@both
async def test_blocking_timeout_of_an_rlock_call_overrides_that_of_the_rlock(io, view) -> None:
    async with io.entered(Lock("waited")):
        began = time.monotonic()
        lock = RLock("waited", blocking_timeout=60)
        assert await io.do(lock, "acquire", blocking_timeout=0.1) is None
        assert time.monotonic() - began < 30, "it waited for the blocking_timeout of the lock"


@both
async def test_rlock_is_free_after_one_release_for_each_acquire(io, view) -> None:
    lock = RLock("again")
    assert not await io.do(lock, "owned")
    first = await io.do(lock, "acquire")
    # A second RLock object shares the lease. The lease outlives the second object.
    second = await io.do(RLock("again"), "acquire")
    gc.collect()
    assert first is second is await io.do(lock, "acquire", blocking=False)
    assert 1 == view("again").holding
    for other in (lock, RLock("again")):
        await io.do(other, "release")
        assert first.held and not await free_elsewhere(io, "again")
        assert await io.do(other, "owned") and await io.do(RLock("again"), "owned")
    await io.do(lock, "release")
    assert not first.held and await free_elsewhere(io, "again")
    with pytest.raises(NotAcquired, match="'again': this thread or task holds nothing"):
        await io.do(lock, "release")


@both
async def test_nested_rlock_block_uses_the_lease_of_the_outer_block(io, view) -> None:
    one, other = RLock("objects"), RLock("objects")
    async with io.entered(one) as outer:
        async with io.entered(other) as inner:
            assert outer is inner
        assert outer.held and await io.do(other, "owned")
        assert await io.do(RLock("objects"), "extend", 90)
        assert outer.remaining > 60
        async with io.entered(RLock("others")) as unrelated:
            assert unrelated.fence != outer.fence
        with pytest.raises(ZeroDivisionError):
            async with io.entered(one), io.entered(other):
                raise ZeroDivisionError
        assert outer.held
        assert await io.do(Lock("objects"), "acquire", blocking=False) is None
        with pytest.raises(ValueError, match="never fit"):
            await io.do(one, "acquire", permits=2)
    assert not outer.held and view("objects").empty
    await io.do(one, "acquire")  # the test keeps no reference to the lease
    async with io.entered(one):
        pass
    gc.collect()
    assert await io.do(one, "owned") and not await free_elsewhere(io, "objects")
    await io.do(one, "release")
    assert await free_elsewhere(io, "objects")


def test_task_and_its_thread_do_not_share_an_rlock(view) -> None:
    lock = RLock("two", blocking=False)

    async def main() -> None:
        async with lock:
            assert await asyncio.to_thread(lock.acquire) is None
            assert lock.acquire(), "sync code called in a task belongs to the task"
            lock.release()
            assert await lock.aowned()

    async def acquired() -> bool:
        return await lock.aacquire() is not None

    with lock:
        assert not asyncio.run(acquired())
    asyncio.run(main())
    assert view("two").empty


FORK = """
import os, django
django.setup()
from django_redis_sync import RLock
with RLock("forked") as lease:
    if os.fork() == 0:
        os._exit(RLock("forked").acquire(blocking_timeout=0.2) is not None)
    assert 0 == os.wait()[1], "the child has the lock of its parent"
    assert lease.owned() and RLock("forked").acquire() is lease
"""


def test_rlock_is_not_owned_by_a_forked_child() -> None:
    done = worker_processes.run("-c", FORK)
    assert 0 == done.returncode, done.stderr


@both
async def test_acquire_of_an_rlock_with_a_lost_lease_raises_until_the_rlock_is_released(
    io, view
) -> None:
    lock, short = RLock("lost"), RLock("short", timeout=0.1)
    await io.do(short, "acquire")
    with pytest.raises(LeaseLost):
        async with io.entered(lock) as lease:
            await io.do(lock, "acquire")
            view("lost").clear()
            assert not await io.do(lock, "owned")
            for thing, method in ((lease, "renew"), (RLock("lost"), "acquire"), (lock, "acquire")):
                with pytest.raises(LeaseLost) as caught:
                    await io.do(thing, method)
            assert LeaseLost is type(caught.value)
            await io.do(lock, "release")
    await io.sleep(0.2)  # the lease of `short` expires
    for method in ("acquire", "release"):
        with pytest.raises(LeaseLost):
            await io.do(short, method)
    # After one release for each acquire, the RLocks can be acquired again.
    assert await io.do(short, "acquire") and await io.do(lock, "acquire")


@both
async def test_with_statement_of_an_rlock_raises_no_error_if_its_body_ends_the_lease(
    io, view
) -> None:
    lock = RLock("direct")
    async with io.entered(lock):
        await io.do(lock, "release")
        assert view("direct").empty
    async with io.entered(lock) as lease:
        await io.do(lock, "acquire")
        await io.do(lease, "release")
        assert view("direct").empty
        with pytest.raises(NotAcquired):
            await io.do(lock, "release")
        detached = await io.do(lock, "acquire")
        assert detached is not lease
        await io.do(detached, "detach", 5)
        assert await io.do(lock, "acquire", blocking=False) is None
    assert 1 == view("direct").holding


@both
async def test_acquire_all_block_does_not_release_an_rlock_of_an_outer_block(io, view) -> None:
    outer = RLock("outer")
    async with io.entered(outer) as lease:
        async with io.entered(acquire_all([Lock("more"), RLock("outer")])) as (_, again):
            assert again is lease
        assert lease.held and view("more").empty
        # An acquire_all that fails releases only what it acquired itself.
        async with io.entered(Lock("zzz")):
            several = acquire_all([RLock("outer"), Lock("zzz"), Lock("more")], blocking=False)
            assert await io.do(several, "acquire") is None
        assert lease.held and view("more").empty
    assert view("outer").empty and view("zzz").empty


def test_rlock_with_release_on_commit_can_be_acquired_again_before_commit(
    view, transactional_db
) -> None:
    """The second block shares the lease of the first block. If the second block waited until the
    commit released the lease, it would wait forever."""
    lock = RLock("commit", release_on_commit=True, blocking=False)
    with transaction.atomic():
        with lock as first:
            pass
        with lock as second:
            assert first is second
        with pytest.raises(NotAcquired):
            lock.release()
        assert first.held
    assert not first.held and view("commit").empty
    # The commit does not release a lock that was acquired again and is still in use.
    with transaction.atomic():
        with lock as first:
            pass
        lock.acquire()
    assert first.held
    lock.release()
    assert not first.held and view("commit").empty


@both
async def test_rlock_of_the_same_name_on_another_server_is_another_lock(io, elsewhere) -> None:
    here, there = RLock("x"), RLock("x", using=elsewhere)
    async with io.entered(here) as one:
        async with io.entered(there) as other, io.entered(there) as again:
            assert one is not other, "an RLock took the lease of another server"
            assert other is again
        assert (True, False) == (one.held, other.held)
        with pytest.raises(NotAcquired, match="holds nothing"):
            await io.do(there, "release")
    async with io.entered(Lock("x", blocking=False)), io.entered(there):
        pass  # a plain lock of one server isn't in the way of the RLock of the other


# Callers that acquire a plain Lock that they already hold


def own_hold(io: Any) -> str:
    caller = "task" if repr(io) == "async" else "thread"
    return f"this {caller} holds the lock, and only an RLock may be taken again"


@both
async def test_not_acquired_error_says_if_the_caller_itself_holds_the_lock(io) -> None:
    async def error_of(full: Semaphore) -> str:
        with pytest.raises(NotAcquired) as caught:
            async with io.entered(full):
                pytest.fail("it is full")
        return str(caught.value)

    lease = await io.result(io.start(io.do(Lock("others'"), "acquire")))
    two = Semaphore("two", 2, blocking=False)
    async with io.entered(Lock("own")), io.entered(two), io.entered(two):
        for options in ({"blocking": False}, {"blocking_timeout": 0.05}):
            assert (await error_of(Lock("own", **options))).endswith(f" ({own_hold(io)})")
        for full in (Lock("others'", blocking=False), two):
            assert "holds the lock" not in await error_of(full)
    await io.do(lease, "release")


@both
async def test_endless_wait_for_a_lock_that_the_caller_holds_is_logged(io, caplog) -> None:
    message = f"this caller waits for a permit of 'own' that it holds itself: {own_hold(io)}"
    lease = await io.do(Lock("own"), "acquire")

    async def release_after_the_message() -> None:
        await until(io, lambda: message in caplog.messages)
        await io.do(lease, "release")

    releasing = io.start(release_after_the_message())
    async with io.entered(Lock("own")):
        assert lease.ended
    await io.result(releasing)
    assert [message] == caplog.messages
