"""RLock: the thread or task that has it may take it again."""

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


async def elsewhere(io: Any, name: str) -> bool:
    """Whether another thread or task can have it now."""

    async def other() -> bool:
        lease = await io.do(RLock(name, blocking=False), "acquire")
        if lease:
            await io.do(lease, "release")
        return lease is not None

    return await io.result(io.start(other()))


@both
async def test_it_can_be_taken_again_and_is_given_back_once(io, view) -> None:
    lock = RLock("again")
    first = await io.do(lock, "acquire")
    second = await io.do(lock, "acquire")
    third = await io.do(lock, "acquire", blocking=False)
    assert first is second is third
    assert 1 == view("again").holding
    for _ in range(2):
        await io.do(lock, "release")
        assert first.held and not await elsewhere(io, "again")
    await io.do(lock, "release")
    assert not first.held and await elsewhere(io, "again")
    with pytest.raises(NotAcquired, match="holds nothing"):
        await io.do(lock, "release")


@both
async def test_it_is_owned_while_the_server_says_so(io, view) -> None:
    lock = RLock("owned")
    assert not await io.do(lock, "owned")
    await io.do(lock, "acquire")
    assert await io.do(lock, "owned")
    view("owned").clear()
    assert not await io.do(lock, "owned")


@both
async def test_it_is_the_same_through_any_object_of_the_name(io, view) -> None:
    one, other = RLock("objects"), RLock("objects")
    async with io.entered(one) as outer:
        async with io.entered(other) as inner:
            assert outer is inner
            assert await io.do(other, "owned") and await io.do(RLock("objects"), "owned")
        assert outer.held and await io.do(other, "owned")
        assert await io.do(RLock("objects"), "extend", 90)
        assert outer.remaining > 60
        # A lock of another name is another lock.
        async with io.entered(RLock("others")) as unrelated:
            assert unrelated.fence != outer.fence
    assert not outer.held and view("objects").empty


@both
async def test_one_object_takes_and_another_releases(io, view) -> None:
    lease = await io.do(RLock("handed"), "acquire")
    await io.do(RLock("handed"), "acquire")
    await io.do(RLock("handed"), "release")
    assert lease.held
    await io.do(RLock("handed"), "release")
    assert not lease.held and view("handed").empty


@both
async def test_whoever_keeps_only_the_lease_can_take_it_again(io) -> None:
    """The object that took it is gone; the lease is not."""
    lease = await io.do(RLock("kept"), "acquire")
    gc.collect()
    assert await io.do(RLock("kept"), "acquire", blocking=False) is lease
    await io.do(lease, "release")


@both
async def test_another_thread_or_task_waits(io, view) -> None:
    lock, order = RLock("theirs"), []

    async def other() -> None:
        async with io.entered(lock):
            order.append("other")

    async with io.entered(lock):
        waiting = io.start(other())
        await until(io, lambda: view("theirs").waiting == 1)
        async with io.entered(lock):
            order.append("mine")
        assert view("theirs").waiting == 1
        order.append("mine")
    await io.result(waiting)
    assert ["mine", "mine", "other"] == order


def test_a_task_and_its_thread_are_two(view) -> None:
    lock = RLock("two")

    async def main() -> None:
        assert await lock.aacquire(blocking=False) is None

    with lock:
        asyncio.run(main())

    async def from_a_task() -> None:
        async with lock:
            assert await asyncio.to_thread(lock.acquire, blocking=False) is None
            # Sync code that a task calls is that task's.
            assert lock.acquire(blocking=False)
            lock.release()
            assert await lock.aowned()

    asyncio.run(from_a_task())
    assert view("two").empty


@both
async def test_a_lost_lease_is_not_taken_again(io, view) -> None:
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
    # Released as often as it was taken: it starts anew.
    async with io.entered(lock) as fresh:
        assert fresh.held


@both
async def test_a_hard_lease_that_ran_out_is_not_taken_again(io) -> None:
    lock = RLock("short", timeout=0.1)
    await io.do(lock, "acquire")
    await io.sleep(0.2)
    with pytest.raises(LeaseLost):
        await io.do(lock, "acquire")
    with pytest.raises(LeaseLost):
        await io.do(lock, "release")
    assert await io.do(lock, "acquire")


@both
async def test_the_leases_own_release_ends_it_at_once(io, view) -> None:
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
async def test_a_detached_lease_is_this_sides_no_more(io) -> None:
    lock = RLock("detached")
    lease = await io.do(lock, "acquire")
    await io.do(lease, "detach", 5)
    assert await io.do(lock, "acquire", blocking=False) is None


@both
async def test_the_bodys_exception_gives_back_every_level(io, view) -> None:
    lock = RLock("raises")
    with pytest.raises(ZeroDivisionError):
        async with io.entered(lock), io.entered(lock):
            raise ZeroDivisionError
    assert view("raises").empty


@both
async def test_a_block_whose_body_gave_it_back_ends_quietly(io, view) -> None:
    lock = RLock("early")
    async with io.entered(lock):
        await io.do(lock, "release")
        assert view("early").empty
    assert view("early").empty


@both
async def test_it_has_one_permit_at_every_level(io) -> None:
    lock = RLock("single")
    await io.do(lock, "acquire")
    with pytest.raises(ValueError, match="never fit"):
        await io.do(lock, "acquire", permits=2)


def test_it_cannot_belong_to_all_threads() -> None:
    with pytest.raises(ValueError, match="thread_local"):
        RLock("x", thread_local=False)


@both
async def test_it_excludes_a_lock_of_the_same_name(io) -> None:
    async with io.entered(RLock("plain")):
        assert await io.do(Lock("plain"), "acquire", blocking=False) is None


@both
async def test_several_at_once_leave_an_outer_level_alone(io, view) -> None:
    outer = RLock("outer")
    async with io.entered(outer) as lease:
        async with io.entered(acquire_all([Lock("more"), RLock("outer")])) as (_, again):
            assert again is lease
        assert lease.held and view("more").empty
        # Undone just so.
        async with io.entered(Lock("zzz")):
            both_of_them = acquire_all([RLock("outer"), Lock("zzz"), Lock("more")], blocking=False)
            assert await io.do(both_of_them, "acquire") is None
        assert lease.held and view("more").empty
    assert view("outer").empty and view("zzz").empty


def test_many_threads_take_turns_at_depth(view) -> None:
    inside, most = [0], [0]

    def turn() -> None:
        for _ in range(5):
            with RLock("depth"), RLock("depth"), RLock("depth") as lease:
                inside[0] += 1
                most[0] = max(most[0], inside[0])
                assert lease.held
                inside[0] -= 1

    threads = [threading.Thread(target=turn) for _ in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert 1 == most[0]
    assert view("depth").empty


def test_with_its_release_put_off_to_commit_it_can_be_taken_again(view, transactional_db) -> None:
    """Without that, the second would wait for a commit that can't come."""
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
    # Taken again and still in use at the commit: that ends nothing.
    with transaction.atomic():
        with lock as first:
            pass
        lock.acquire()
    assert first.held
    lock.release()
    assert not first.held and view("commit").empty


# A plain lock instead


@both
async def test_a_plain_lock_says_that_its_own_caller_holds_it(io, view) -> None:
    who = "task" if repr(io) == "async" else "thread"
    said = rf"\(this {who} holds it, and only an RLock may be taken"
    async with io.entered(Lock("own")):
        for impatient in (Lock("own", blocking=False), Lock("own", blocking_timeout=0.05)):
            with pytest.raises(NotAcquired, match=said):
                async with io.entered(impatient):
                    pass


@both
async def test_a_plain_lock_says_nothing_of_what_others_hold(io, view) -> None:
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
async def test_a_wait_for_ever_for_what_the_caller_holds_is_logged(io, view, caplog) -> None:
    said = "'own' waits for itself: this {} holds it, and only an RLock may be taken again"
    said = said.format("task" if repr(io) == "async" else "thread")
    lease = await io.do(Lock("own"), "acquire")

    async def helped() -> None:
        await until(io, lambda: said in caplog.messages)
        await io.do(lease, "release")

    helping = io.start(helped())
    async with io.entered(Lock("own")):
        assert lease.ended
    await io.result(helping)
    assert [said] == caplog.messages


@both
async def test_a_block_inside_leaves_the_lease_to_the_acquire_around_it(io, view) -> None:
    lock = RLock("around")
    await io.do(lock, "acquire")  # what it returned is dropped

    async with io.entered(lock):
        pass
    gc.collect()
    lease = lock._mine()
    assert lease is not None and lease.held and not await elsewhere(io, "around")
    del lease
    await io.do(lock, "release")
    assert await elsewhere(io, "around")
