"""A call of an async method belongs to the task or thread that made the call."""

from __future__ import annotations

import asyncio
import inspect
import sys
import time
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

import pytest
from asgiref.sync import async_to_sync, iscoroutinefunction, sync_to_async

from django_redis_sync import (
    Lease,
    Lock,
    NotAcquired,
    ReadWriteLock,
    RLock,
    Semaphore,
    acquire_all,
)
from tests.behaviour.both import MAX_WAIT, Async, until

pytestmark = pytest.mark.usefixtures("clean_redis")


async def _gathered(call: Coroutine[Any, Any, Any]) -> Any:
    (result,) = await asyncio.gather(call)
    return result


async def _in_task_group(call: Coroutine[Any, Any, Any]) -> Any:
    try:
        async with asyncio.TaskGroup() as group:  # type: ignore[attr-defined]
            task = group.create_task(call)
    except BaseException as group_of_one:
        raise group_of_one.exceptions[0] from None  # type: ignore[attr-defined]
    return task.result()


#: Ways to await a call in another task than the one that makes the call. `wait_for` runs its
#: argument in a task of its own before Python 3.12.
WAYS: dict[str, Callable[[Coroutine[Any, Any, Any]], Awaitable[Any]]] = {
    "await": lambda call: call,
    "create_task": lambda call: asyncio.create_task(call),
    "gather": _gathered,
    "shield": asyncio.shield,
    "wait_for": lambda call: asyncio.wait_for(call, MAX_WAIT),
    "ensure_future": asyncio.ensure_future,
}
if sys.version_info >= (3, 11):
    WAYS["TaskGroup"] = _in_task_group


@pytest.fixture(params=WAYS)
def way(request: Any) -> Callable[[Coroutine[Any, Any, Any]], Awaitable[Any]]:
    return WAYS[request.param]


def test_aacquire_gives_its_lease_to_the_caller_whoever_awaits_the_call(way, view) -> None:
    async def main() -> None:
        for lock in (Lock("one"), Semaphore("one", 1), RLock("one"), ReadWriteLock("many").write):
            lease = await way(lock.aacquire())
            assert await lock.aowned(), "the caller holds the lease"
            assert await way(lock.aowned())
            assert await way(lock.aextend(60)) and lease.remaining > 60
            assert await way(lock.areacquire()) and lease.remaining <= 30
            await lock.arelease()
            assert not lease.held and lease.ended

    asyncio.run(main())
    assert view("one").empty and view("many").empty


def test_arelease_releases_the_lease_of_the_caller_whoever_awaits_the_call(way, view) -> None:
    async def main() -> None:
        for lock in (Lock("one"), RLock("one"), acquire_all([Lock("one"), Lock("two")])):
            await lock.aacquire()
            await way(lock.arelease())
            with pytest.raises(NotAcquired):
                await way(lock.arelease())
        rw = ReadWriteLock("many")
        await way(rw.write.aacquire())
        await way(rw.adowngrade())
        await way(rw.read.arelease())

    asyncio.run(main())
    assert view("one").empty and view("two").empty and view("many").empty


def test_block_belongs_to_the_caller_of_its_methods_whoever_awaits_them(way, view) -> None:
    async def main() -> None:
        for lock in (Lock("one"), RLock("one"), acquire_all([Lock("one"), Lock("two")])):
            await way(lock.__aenter__())
            await way(lock.__aexit__(None, None, None))

    asyncio.run(main())
    assert view("one").empty and view("two").empty


def test_lease_of_a_call_outlives_the_task_that_awaited_the_call(caplog) -> None:
    async def main() -> None:
        lock = Lock("kept", timeout=3, renew=True)
        await asyncio.create_task(lock.aacquire())  # the result, a lease, is dropped
        lease = lock._mine()
        assert lease is not None
        first = lease._state.until
        await until(Async(), lambda: lease._state.until > first)  # it is renewed
        await lock.arelease()

    asyncio.run(main())
    assert [] == caplog.messages


def test_another_task_can_not_release_the_lease_of_the_caller() -> None:
    async def main() -> None:
        lock = Lock("mine")
        async with lock:

            async def other() -> None:
                with pytest.raises(NotAcquired):
                    await lock.arelease()

            await asyncio.create_task(other())
            assert await lock.aowned()

    asyncio.run(main())


def test_call_made_by_a_thread_outside_of_loops_belongs_to_the_thread() -> None:
    lock = Lock("between")
    loop = asyncio.new_event_loop()
    try:
        lease = loop.run_until_complete(lock.aacquire())
        loop.run_until_complete(lock.arelease())
        assert lease is not None and lease.ended
    finally:
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.close()


def test_adopted_lease_belongs_to_the_caller(way) -> None:
    async def main() -> None:
        lease = await Lock("handed").aacquire()
        assert lease is not None
        adopted = await way(Lease.afrom_handle(await lease.adetach()))
        assert adopted._caller() is asyncio.current_task()
        await adopted.arelease()

    asyncio.run(main())


ASYNC_METHODS = [
    *(getattr(Lock("marked"), name) for name in ("aacquire", "arelease", "aextend", "areacquire")),
    *(getattr(RLock("marked"), name) for name in ("aowned", "__aenter__", "__aexit__", "alocked")),
    *(getattr(acquire_all([Lock("marked")]), name) for name in ("aacquire", "arelease")),
    ReadWriteLock("marked").adowngrade,
    Lease.afrom_handle,
]


@pytest.mark.parametrize("method", ASYNC_METHODS, ids=lambda method: method.__qualname__)
def test_async_method_is_marked_as_a_coroutine_function(method) -> None:
    assert iscoroutinefunction(method)
    assert inspect.iscoroutinefunction(method)
    assert "caller" not in inspect.signature(method).parameters


def test_call_that_is_not_awaited_sends_nothing_and_keeps_the_lease(view) -> None:
    async def main() -> None:
        lock = Lock("idle")
        call = lock.aacquire()
        assert inspect.iscoroutine(call)
        call.close()
        assert view("idle").empty
        async with lock:
            lock.arelease().close()
            assert await lock.aowned()

    asyncio.run(main())


# Several calls of a caller at the same time


@pytest.mark.parametrize("options", [{}, {"blocking": False}, {"blocking_timeout": MAX_WAIT}])
def test_simultaneous_calls_of_a_task_on_an_rlock_share_its_lease(options, view) -> None:
    async def main() -> None:
        one, other = RLock("again"), RLock("again")
        calls = one.aacquire(**options), other.aacquire(**options), one.aacquire(**options)
        leases = await asyncio.wait_for(asyncio.gather(*calls), MAX_WAIT)
        assert leases[0] is leases[1] is leases[2] is not None
        for lock in (one, other, one):
            assert leases[0].held
            await lock.arelease()
        assert not leases[0].held

    asyncio.run(main())
    assert view("again").empty


def test_simultaneous_calls_on_an_rlock_wait_for_another_holder(view) -> None:
    async def main() -> None:
        lock, holder = RLock("again"), await Lock("again").aacquire()
        patient, hasty = asyncio.create_task(lock.aacquire()), lock.aacquire(blocking=False)
        late = asyncio.create_task(lock.aacquire(blocking_timeout=0.05))
        await until(Async(), lambda: view("again").waiting == 1)
        assert await hasty is None, "it does not wait"
        assert await late is None, "it waits for its own time only"
        more = asyncio.create_task(lock.aacquire())
        await holder.arelease()
        assert await patient is await more is not None
        await lock.arelease()
        await lock.arelease()

    asyncio.run(main())
    assert view("again").empty


def test_simultaneous_call_on_an_rlock_acquires_if_the_first_call_is_cancelled(view) -> None:
    async def main() -> None:
        lock, holder = RLock("again"), await Lock("again").aacquire()
        first, second = asyncio.create_task(lock.aacquire()), asyncio.create_task(lock.aacquire())
        await until(Async(), lambda: view("again").waiting == 1)
        first.cancel()
        await asyncio.wait((first,))
        assert first.cancelled() and not second.done()
        await holder.arelease()
        assert (await asyncio.wait_for(second, MAX_WAIT)).held
        await lock.arelease()

    asyncio.run(main())
    assert view("again").empty


def test_simultaneous_calls_of_two_tasks_on_an_rlock_exclude_each_other() -> None:
    async def main() -> None:
        inside = 0

        async def work() -> None:
            nonlocal inside
            async with RLock("each"):
                inside += 1
                assert inside == 1
                await asyncio.sleep(0.01)
                inside -= 1

        await asyncio.gather(*(work() for _ in range(4)))

    asyncio.run(main())


# Sync code that runs an event loop, and async code that runs sync code


def _take(lock: Semaphore) -> Callable[[], str]:
    def take() -> str:
        with lock:
            return "entered"

    return take


def _atake(lock: Semaphore) -> Callable[[], Coroutine[Any, Any, str]]:
    async def take() -> str:
        async with lock:
            return "entered"

    async def in_another_task() -> str:
        return await asyncio.create_task(take())

    return in_another_task


def _through_both(lock: Semaphore) -> Callable[[], Coroutine[Any, Any, str]]:
    """Return async code that runs sync code on another thread, which runs async code."""
    return sync_to_async(async_to_sync(_atake(lock)), thread_sensitive=False)


@pytest.mark.parametrize(
    "call",
    [
        lambda lock: async_to_sync(_atake(lock))(),
        lambda lock: asyncio.run(_atake(lock)()),
        lambda lock: async_to_sync(_through_both(lock))(),
    ],
    ids=["async_to_sync", "asyncio.run", "both"],
)
def test_rlock_of_sync_code_is_refused_in_async_code_that_it_runs(call, view) -> None:
    with RLock("nested"):
        with pytest.raises(RuntimeError, match=r"would never end: the thread that holds the lock"):
            call(RLock("nested"))
        with pytest.raises(NotAcquired, match="the thread that holds the lock has called"):
            call(RLock("nested", blocking_timeout=0.05))
    assert view("nested").empty
    assert call(RLock("nested")) == "entered"


@pytest.mark.parametrize(
    "call",
    [
        lambda lock: sync_to_async(_take(lock))(),
        lambda lock: sync_to_async(_take(lock), thread_sensitive=False)(),
        lambda lock: sync_to_async(async_to_sync(_atake(lock)))(),
        _through_both,
    ],
    ids=["sync_to_async", "other thread", "both", "both, other thread"],
)
def test_rlock_of_async_code_is_refused_in_sync_code_that_it_runs(call, view) -> None:
    async def made(lock: Semaphore) -> str:
        got = call(lock)
        return await (got() if callable(got) else got)

    async def main() -> None:
        async with RLock("nested"):
            with pytest.raises(RuntimeError, match="would never end: the task that holds the lock"):
                await made(RLock("nested"))
        assert await made(RLock("nested")) == "entered"

    asyncio.run(main())
    assert view("nested").empty


def test_rlock_is_refused_in_sync_code_that_begins_before_its_task_awaits_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    run = asyncio.BaseEventLoop.run_in_executor

    def slow(*args: Any) -> Any:
        """Start the sync code, and let it ask for the lock before the task awaits its end."""
        started = run(*args)
        time.sleep(0.1)
        return started

    monkeypatch.setattr(asyncio.BaseEventLoop, "run_in_executor", slow)

    async def main() -> None:
        async with RLock("nested"):
            with pytest.raises(RuntimeError, match="would never end"):
                await sync_to_async(_take(RLock("nested")), thread_sensitive=False)()

    asyncio.run(main())


def test_rlock_of_sync_code_is_taken_again_by_sync_code_below_async_code() -> None:
    # Below async_to_sync(), sync_to_async() runs sync code on the thread of the outer sync code.
    with RLock("nested"):
        assert async_to_sync(sync_to_async(_take(RLock("nested"))))() == "entered"


def test_rlock_of_a_task_is_waited_for_by_unrelated_sync_code(view) -> None:
    async def main() -> None:
        done = asyncio.Event()

        async def holder() -> None:
            async with RLock("unrelated"):
                await sync_to_async(lambda: None, thread_sensitive=False)()
                await done.wait()

        holding = asyncio.create_task(holder())
        await until(Async(), lambda: view("unrelated").holding == 1)
        work = sync_to_async(_take(RLock("unrelated")), thread_sensitive=False)
        waiting = asyncio.create_task(work())
        await until(Async(), lambda: view("unrelated").waiting == 1)
        done.set()
        assert await asyncio.wait_for(waiting, MAX_WAIT) == "entered"
        await holding

    asyncio.run(main())


def test_task_that_outlives_the_block_of_its_starter_waits_for_the_rlock(view) -> None:
    async def main() -> None:
        async with RLock("later"):
            task = asyncio.create_task(_atake(RLock("later"))())
            await until(Async(), lambda: view("later").waiting == 1)
        assert await asyncio.wait_for(task, MAX_WAIT) == "entered"

    asyncio.run(main())


def test_endless_wait_for_a_lock_of_the_calling_sync_code_is_logged(caplog, view) -> None:
    lease = Lock("plain").acquire()
    assert lease is not None
    message = "has called this code, and waits for its end"

    async def service() -> str:
        entering = asyncio.create_task(_atake(Lock("plain"))())
        await until(Async(), lambda: any(message in text for text in caplog.messages))
        await lease.arelease()
        return await entering

    assert async_to_sync(service)() == "entered"
