"""RLock: the thread or task that holds it can acquire it again."""

from __future__ import annotations

import asyncio
import gc
import threading
from typing import Any

import pytest
from django.db import transaction

from django_redis_sync import LeaseLost, Lock, NotAcquired, RLock, Semaphore, acquire_all

from .behaviour.both import both, until
from .behaviour.watching import View

pytestmark = [pytest.mark.usefixtures("clean_redis"), pytest.mark.promise(16)]


@pytest.fixture
def view(raw: Any) -> Any:
    return lambda name: View(raw, name)


async def free_elsewhere(io: Any, name: str) -> bool:
    """Return True if another thread or task can acquire the RLock now."""

    async def other() -> bool:
        lease = await io.do(RLock(name, blocking=False), "acquire")
        if lease:
            await io.do(lease, "release")
        return lease is not None

    return await io.result(io.start(other()))


@both
async def test_rlock_is_released_with_its_last_release(io, view) -> None:
    lock = RLock("again")
    first = await io.do(lock, "acquire")
    second = await io.do(lock, "acquire")
    third = await io.do(lock, "acquire", blocking=False)
    assert first is second is third
    assert 1 == view("again").holding
    for _ in range(2):
        await io.do(lock, "release")
        assert first.held and not await free_elsewhere(io, "again")
    await io.do(lock, "release")
    assert not first.held and await free_elsewhere(io, "again")
    with pytest.raises(NotAcquired, match="holds nothing"):
        await io.do(lock, "release")


@both
async def test_rlock_is_owned_while_redis_has_its_lease(io, view) -> None:
    lock = RLock("owned")
    assert not await io.do(lock, "owned")
    await io.do(lock, "acquire")
    assert await io.do(lock, "owned")
    view("owned").clear()
    assert not await io.do(lock, "owned")


@both
async def test_rlock_objects_of_one_name_share_the_lease(io, view) -> None:
    one, other = RLock("objects"), RLock("objects")
    async with io.entered(one) as outer:
        async with io.entered(other) as inner:
            assert outer is inner
            assert await io.do(other, "owned") and await io.do(RLock("objects"), "owned")
        assert outer.held and await io.do(other, "owned")
        assert await io.do(RLock("objects"), "extend", 90)
        assert outer.remaining > 60
        async with io.entered(RLock("others")) as unrelated:
            assert unrelated.fence != outer.fence
    assert not outer.held and view("objects").empty


@both
async def test_rlock_can_be_released_through_another_object(io, view) -> None:
    lease = await io.do(RLock("handed"), "acquire")
    await io.do(RLock("handed"), "acquire")
    await io.do(RLock("handed"), "release")
    assert lease.held
    await io.do(RLock("handed"), "release")
    assert not lease.held and view("handed").empty


@both
async def test_rlock_can_be_acquired_again_after_its_object_was_collected(io) -> None:
    lease = await io.do(RLock("kept"), "acquire")
    gc.collect()
    assert await io.do(RLock("kept"), "acquire", blocking=False) is lease
    await io.do(lease, "release")


@both
async def test_rlock_makes_another_thread_or_task_wait(io, view) -> None:
    lock, order = RLock("taken"), []

    async def other() -> None:
        async with io.entered(lock):
            order.append("other")

    async with io.entered(lock):
        waiting = io.start(other())
        await until(io, lambda: view("taken").waiting == 1)
        async with io.entered(lock):
            order.append("mine")
        assert view("taken").waiting == 1
        order.append("mine")
    await io.result(waiting)
    assert ["mine", "mine", "other"] == order


def test_rlock_separates_a_task_from_its_thread(view) -> None:
    lock = RLock("two")

    async def main() -> None:
        assert await lock.aacquire(blocking=False) is None

    with lock:
        asyncio.run(main())

    async def from_a_task() -> None:
        async with lock:
            assert await asyncio.to_thread(lock.acquire, blocking=False) is None
            # Sync code called in a task belongs to the task.
            assert lock.acquire(blocking=False)
            lock.release()
            assert await lock.aowned()

    asyncio.run(from_a_task())
    assert view("two").empty


@both
async def test_rlock_with_a_lost_lease_raises_until_it_is_released(io, view) -> None:
    lock = RLock("lost")
    with pytest.raises(LeaseLost):
        async with io.entered(lock) as lease:
            await io.do(lock, "acquire")
            view("lost").clear()
            assert not await io.do(lease, "owned")
            with pytest.raises(LeaseLost) as caught:
                await io.do(lease, "renew")
            for _ in range(2):
                with pytest.raises(LeaseLost) as caught:
                    await io.do(RLock("lost"), "acquire")
            assert LeaseLost is type(caught.value)
            await io.do(lock, "release")
    # After as many releases as acquires, the RLock can be acquired again.
    async with io.entered(lock) as new:
        assert new.held


@both
async def test_rlock_with_an_expired_lease_raises_until_it_is_released(io) -> None:
    lock = RLock("short", timeout=0.1)
    await io.do(lock, "acquire")
    await io.sleep(0.2)
    with pytest.raises(LeaseLost):
        await io.do(lock, "acquire")
    with pytest.raises(LeaseLost):
        await io.do(lock, "release")
    assert await io.do(lock, "acquire")


@both
async def test_lease_release_ends_every_level_of_an_rlock(io, view) -> None:
    lock = RLock("direct")
    async with io.entered(lock) as lease:
        await io.do(lock, "acquire")
        await io.do(lease, "release")
        assert view("direct").empty
        with pytest.raises(NotAcquired):
            await io.do(lock, "release")
        assert await io.do(lock, "acquire") is not lease
        await io.do(lock, "release")


@both
async def test_rlock_cannot_be_acquired_again_after_detach(io) -> None:
    lock = RLock("detached")
    lease = await io.do(lock, "acquire")
    await io.do(lease, "detach", 5)
    assert await io.do(lock, "acquire", blocking=False) is None


@both
async def test_exception_in_nested_rlock_blocks_releases_every_level(io, view) -> None:
    lock = RLock("raises")
    with pytest.raises(ZeroDivisionError):
        async with io.entered(lock), io.entered(lock):
            raise ZeroDivisionError
    assert view("raises").empty


@both
async def test_rlock_block_ends_without_error_when_its_body_released_it(io, view) -> None:
    lock = RLock("early")
    async with io.entered(lock):
        await io.do(lock, "release")
        assert view("early").empty
    assert view("early").empty


@both
async def test_rlock_rejects_more_than_one_permit(io) -> None:
    lock = RLock("single")
    await io.do(lock, "acquire")
    with pytest.raises(ValueError, match="never fit"):
        await io.do(lock, "acquire", permits=2)


def test_rlock_rejects_thread_local_false() -> None:
    with pytest.raises(ValueError, match="thread_local"):
        RLock("x", thread_local=False)


@both
async def test_rlock_excludes_a_lock_of_the_same_name(io) -> None:
    async with io.entered(RLock("plain")):
        assert await io.do(Lock("plain"), "acquire", blocking=False) is None


@both
async def test_acquire_all_keeps_an_outer_rlock_level(io, view) -> None:
    outer = RLock("outer")
    async with io.entered(outer) as lease:
        async with io.entered(acquire_all([Lock("more"), RLock("outer")])) as (_, again):
            assert again is lease
        assert lease.held and view("more").empty
        # A failed attempt undoes only its own level.
        async with io.entered(Lock("zzz")):
            several = acquire_all([RLock("outer"), Lock("zzz"), Lock("more")], blocking=False)
            assert await io.do(several, "acquire") is None
        assert lease.held and view("more").empty
    assert view("outer").empty and view("zzz").empty


def test_nested_rlock_admits_one_thread_at_a_time(view) -> None:
    inside, maximum = [0], [0]

    def acquire_nested() -> None:
        for _ in range(5):
            with RLock("depth"), RLock("depth"), RLock("depth") as lease:
                inside[0] += 1
                maximum[0] = max(maximum[0], inside[0])
                assert lease.held
                inside[0] -= 1

    threads = [threading.Thread(target=acquire_nested) for _ in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert 1 == maximum[0]
    assert view("depth").empty


def test_rlock_with_release_on_commit_can_be_acquired_again_before_commit(
    view, transactional_db
) -> None:
    """Otherwise the second block would wait for a commit that can't happen."""
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
    # If the lock is acquired again and still in use at the commit, it stays held.
    with transaction.atomic():
        with lock as first:
            pass
        lock.acquire()
    assert first.held
    lock.release()
    assert not first.held and view("commit").empty


# A plain Lock that its caller already holds


@both
async def test_full_lock_error_names_the_caller_as_the_holder(io) -> None:
    caller = "task" if repr(io) == "async" else "thread"
    message = rf"\(this {caller} holds it, and only an RLock may be taken"
    async with io.entered(Lock("own")):
        for lock in (Lock("own", blocking=False), Lock("own", blocking_timeout=0.05)):
            with pytest.raises(NotAcquired, match=message):
                async with io.entered(lock):
                    pass


@both
async def test_full_lock_error_does_not_name_other_holders(io) -> None:
    lease = await io.result(io.start(io.do(Lock("others'"), "acquire")))
    two = Semaphore("two", 2, blocking=False)
    async with io.entered(Lock("another")), io.entered(two), io.entered(two):
        for full in (Lock("others'", blocking=False), two):
            with pytest.raises(NotAcquired) as caught:
                async with io.entered(full):
                    pass
            assert "holds it" not in str(caught.value)
    await io.do(lease, "release")


@both
async def test_endless_wait_for_a_lock_of_the_caller_is_logged(io, caplog) -> None:
    caller = "task" if repr(io) == "async" else "thread"
    message = (
        f"'own' waits for itself: this {caller} holds it, and only an RLock may be taken again"
    )
    lease = await io.do(Lock("own"), "acquire")

    async def release_after_the_message() -> None:
        await until(io, lambda: message in caplog.messages)
        await io.do(lease, "release")

    releasing = io.start(release_after_the_message())
    async with io.entered(Lock("own")):
        assert lease.ended
    await io.result(releasing)
    assert [message] == caplog.messages


@both
async def test_inner_block_keeps_the_lease_of_an_outer_acquire(io) -> None:
    lock = RLock("around")
    await io.do(lock, "acquire")  # no reference to the lease is kept

    async with io.entered(lock):
        pass
    gc.collect()
    lease = lock._mine()
    assert lease is not None and lease.held and not await free_elsewhere(io, "around")
    del lease
    await io.do(lock, "release")
    assert await free_elsewhere(io, "around")
