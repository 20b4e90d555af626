"""Permits and leases, in sync and async code."""

from __future__ import annotations

import asyncio
import gc
import logging
import math
import signal
import threading
import time
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from redis.exceptions import LockError, LockNotOwnedError

from django_redis_sync import (
    Lease,
    LeaseLost,
    Lock,
    NotAcquired,
    ReadWriteLock,
    RLock,
    Semaphore,
)
from django_redis_sync.locks.handle import Adoption
from django_redis_sync.signals import lease_lost

from .both import both, eventually, side_by_side, until
from .watching import sent

pytestmark = [pytest.mark.usefixtures("clean_redis"), pytest.mark.promise(15)]


async def take(io: Any, name: str, limit: int, count: int, **options: Any) -> list[Lease]:
    """Try to acquire `count` times at once, and return the leases that were granted."""
    tries = [io.do(Semaphore(name, limit, **options), "acquire", False) for _ in range(count)]
    return [lease for lease in await io.gather(*tries) if lease]


# Limits


@both
async def test_limit_of_eleven_grants_eleven_of_twelve_after_eleven_releases(io, view) -> None:
    async def cycle() -> bool:
        lease = await io.do(Semaphore("eleven", 11), "acquire")
        await io.do(lease, "release")
        return True

    assert await io.gather(*[cycle() for _ in range(11)]) == [True] * 11
    leases = await take(io, "eleven", 11, 12)
    assert 11 == len(leases) == view("eleven").holding
    assert 11 == len({lease.token for lease in leases}) == len({lease.fence for lease in leases})


@both
async def test_limit_of_ten_grants_ten_of_thirteen_and_rejects_three_at_once(io, view) -> None:
    leases = await take(io, "ten", 10, 13)
    assert 10 == len(leases) == view("ten").holding
    assert view("ten").waiting == 0


@both
async def test_acquire_counts_permits_against_the_limit(io, view) -> None:
    sem = Semaphore("weighed", 5, blocking=False)
    three = await io.do(sem, "acquire", permits=3)
    assert three.permits == 3
    assert await io.do(sem, "acquire", permits=3) is None
    assert await io.do(sem, "acquire", permits=2)
    assert await io.do(sem, "acquire", permits=1) is None
    assert await io.do(Semaphore("weighed", 6, blocking=False), "acquire")


@both
async def test_waiter_gets_the_released_permit(io, view) -> None:
    lock = Lock("turns")
    first = await io.do(lock, "acquire")
    waiting = io.start(io.do(Lock("turns"), "acquire"))
    await until(io, lambda: view("turns").waiting == 1)
    await io.do(first, "release")
    second = await io.result(waiting)
    assert second.held and second.fence > first.fence
    await io.do(second, "release")
    await until(io, lambda: view("turns").empty)


@both
async def test_waiter_leaves_the_queue_after_its_timeout(io, view) -> None:
    first = await io.do(Lock("vain"), "acquire")
    assert await io.do(Lock("vain"), "acquire", blocking_timeout=0.1) is None
    assert view("vain").waiting == 0
    await io.do(first, "release")
    assert await io.do(Lock("vain", blocking=False), "acquire")


KINDS: dict[str, Any] = {
    "lock": Lock,
    "rlock": RLock,
    "semaphore": lambda name: Semaphore(name, 1),
    "read": lambda name: ReadWriteLock(name).read,
    "write": lambda name: ReadWriteLock(name).write,
}


@pytest.mark.parametrize(
    "options", [{"blocking": False}, {"blocking_timeout": 0.02}], ids=["now", "soon"]
)
@pytest.mark.parametrize("kind", KINDS)
@both
async def test_acquire_of_each_class_accepts_blocking_and_blocking_timeout(
    io, kind: str, options: Any
) -> None:
    holder = KINDS["write" if kind == "read" else kind]("x")
    lease = await io.result(io.start(io.do(holder, "acquire")))
    assert await io.result(io.start(io.do(KINDS[kind]("x"), "acquire", **options))) is None
    await io.do(lease, "release")


@both
async def test_rejected_acquire_leaves_no_holder_and_no_waiter(io, view) -> None:
    first = await io.do(Lock("refused"), "acquire")
    await take(io, "refused", 1, 5)
    assert (view("refused").holding, view("refused").waiting) == (1, 0)
    await io.do(first, "release")


@both
async def test_with_block_raises_not_acquired_with_the_reason(io) -> None:
    async with io.entered(Lock("why")):
        with pytest.raises(NotAcquired, match=r"'why'.* all permits are in use") as caught:
            async with io.entered(Lock("why", blocking=False)):
                pytest.fail("two are in")
        assert (caught.value.reason, caught.value.lock_name) == ("full", "why")
        with pytest.raises(NotAcquired) as caught:
            async with io.entered(Lock("why", blocking_timeout=0.05)):
                pytest.fail("two are in")
        assert caught.value.reason == "timeout"
    assert NotAcquired is type(caught.value) and isinstance(caught.value, LockError)


@both
async def test_lock_and_semaphore_with_limit_one_exclude_each_other(io) -> None:
    async with io.entered(Lock("same")):
        assert await io.do(Semaphore("same", 1, blocking=False), "acquire") is None


@both
async def test_acquire_uses_the_callers_limit_and_keeps_all_holders(io, view) -> None:
    leases = await take(io, "lower", 3, 3)
    assert await io.do(Semaphore("lower", 2, blocking=False), "acquire") is None
    assert all([await io.do(lease, "owned") for lease in leases])
    assert await io.do(Semaphore("lower", 4, blocking=False), "acquire")


@both
async def test_unfair_acquire_may_overtake_a_new_head_that_does_not_fit(io, view) -> None:
    first = await io.do(Semaphore("unfair", 3), "acquire", permits=2)
    large = io.start(io.do(Semaphore("unfair", 3), "acquire", permits=3))
    await until(io, lambda: view("unfair").waiting == 1)
    assert await io.do(Semaphore("unfair", 3, blocking=False), "acquire") is None
    small = await io.do(Semaphore("unfair", 3, fair=False, blocking=False), "acquire")
    assert small
    await io.do(first, "release")
    await io.do(small, "release")
    assert (await io.result(large)).permits == 3


# A lease


@both
async def test_lease_has_name_permits_token_and_times(io) -> None:
    lease = await io.do(Lock("says", timeout=20), "acquire")
    assert lease and lease.held and lease.name == "says" and lease.permits == 1
    assert 18 < lease.remaining <= 20
    assert abs(datetime.now(timezone.utc) - lease.acquired_at) < timedelta(minutes=2)
    assert len(lease.token) == 32
    assert lease.token not in repr(lease)
    lease.check()
    await io.do(lease, "release")
    assert not lease and not lease.held and lease.remaining == 0
    with pytest.raises(LeaseLost):
        lease.check()


@both
async def test_lease_can_be_released_only_once(io) -> None:
    lease = await io.do(Lock("once"), "acquire")
    await io.do(lease, "release")
    other = await io.do(Lock("once"), "acquire")
    with pytest.raises(NotAcquired, match="released already"):
        await io.do(lease, "release")
    assert await io.do(other, "owned")


@both
async def test_renew_extend_and_reacquire_change_the_expiry(io, view) -> None:
    lock = Lock("moved", timeout=10)
    lease = await io.do(lock, "acquire")
    await io.do(lease, "renew", 40)
    assert 35 < lease.remaining <= 40 and 35 < view("moved").ends_in <= 40
    assert await io.do(lease, "extend", 20)
    assert 55 < lease.remaining <= 60 and 55 < view("moved").ends_in <= 60.1
    assert await io.do(lease, "extend", 15, replace_ttl=True)
    assert 10 < lease.remaining <= 15 and 10 < view("moved").ends_in <= 15
    await io.do(lease, "renew", 60)
    assert await io.do(lease, "reacquire")
    assert 5 < lease.remaining <= 10 and 5 < view("moved").ends_in <= 10
    assert await io.do(lock, "extend", 90, replace_ttl=True)
    assert lease.remaining > 80
    assert await io.do(lock, "reacquire")
    assert lease.remaining <= 10


@both
async def test_ended_lease_cannot_be_renewed_extended_or_detached(io, view) -> None:
    lease = await io.do(Lock("over"), "acquire")
    view("over").clear()
    other = await io.do(Lock("over", blocking=False), "acquire")
    end = view("over").ends_in
    for method, *args in (["renew"], ["extend", 60], ["reacquire"], ["detach"]):
        with pytest.raises(LeaseLost) as caught:
            await io.do(lease, method, *args)
        assert LeaseLost is type(caught.value) and isinstance(caught.value, LockNotOwnedError)
    assert await io.do(other, "owned") and not await io.do(lease, "owned")
    assert view("over").ends_in <= end


@both
async def test_owned_and_locked_return_the_state_of_the_server(io, view) -> None:
    lock = Lock("asked")
    assert not await io.do(lock, "locked") and not await io.do(lock, "owned")
    lease = await io.do(lock, "acquire")
    other = Lock("asked")
    assert await io.do(lock, "locked") and await io.do(lock, "owned")
    assert await io.do(lease, "locked") and await io.do(lease, "owned")
    assert await io.do(other, "locked") and not await io.do(other, "owned")
    view("asked").clear()
    assert not await io.do(lock, "owned") and not await io.do(lock, "locked")


@both
async def test_lease_with_a_timeout_expires_unrenewed(io, view, caplog) -> None:
    lost = threading.Event()
    lease = await io.do(Lock("hard", timeout=0.3, on_lost=lambda _: lost.set()), "acquire")
    second = await io.do(Lock("hard"), "acquire", blocking_timeout=20)
    assert second and not lease.held
    await until(io, lost.is_set)
    with pytest.raises(LeaseLost):
        await io.do(lease, "release")
    assert await io.do(second, "owned")


@side_by_side
async def test_renew_option_renews_a_lease_with_a_timeout_until_max_hold(io, view) -> None:
    name = io.name("capped")
    lock = Lock(name, timeout=3, renew=True, max_hold=6)
    lease = await io.do(lock, "acquire")
    await io.sleep(4)
    assert lease.held and await io.do(lease, "owned")
    await until(io, lambda: not lease.held)
    await until(io, lambda: view(name).holding == 0)
    with pytest.raises(LeaseLost):
        lease.check()


@both
async def test_permanent_lease_and_its_keys_do_not_expire(io, view) -> None:
    lease = await io.do(Lock("ever", timeout=math.inf), "acquire")
    assert math.inf == lease.remaining and math.inf == view("ever").ends_in
    assert all(view("ever").client.pttl(key) == -1 for key in view("ever").left())
    await io.do(lease, "release")
    assert view("ever").empty
    assert all(view("ever").client.pttl(key) > 0 for key in view("ever").left())


@both
async def test_permanent_lease_is_handed_off_to_a_waiter(io, view) -> None:
    lock = Lock("ever-next", timeout=math.inf)
    first = await io.do(lock, "acquire")
    waiting = io.start(io.do(Lock("ever-next", timeout=math.inf), "acquire"))
    await until(io, lambda: view("ever-next").waiting == 1)
    await io.do(first, "release")
    second = await io.result(waiting)
    await until(io, lambda: math.inf == view("ever-next").ends_in)
    assert math.inf == second.remaining


@both
async def test_permanent_lease_ends_when_it_is_cleared(io, view) -> None:
    lease = await io.do(Lock("stuck", timeout=math.inf), "acquire")
    view("stuck").clear()
    assert not await io.do(lease, "owned")
    assert await io.do(Lock("stuck", blocking=False), "acquire")


@side_by_side
async def test_min_hold_keeps_the_permit_taken_after_the_release(io, view) -> None:
    name = io.name("period")
    lock = Lock(name, min_hold=4.0, blocking=False)
    lease = await io.do(lock, "acquire")
    await io.do(lease, "release")
    assert not lease.held
    assert await io.do(lock, "acquire") is None
    assert await io.do(lock, "locked")
    assert 0 < view(name).ends_in <= 4.0
    again = await io.do(lock, "acquire", True, 20)
    assert again and again.fence - lease.fence >= 4_000_000


@both
async def test_min_hold_has_no_effect_after_a_longer_hold(io) -> None:
    lock = Lock("period", min_hold=0.1, blocking=False)
    lease = await io.do(lock, "acquire")
    await io.sleep(0.2)
    await io.do(lease, "release")
    assert await io.do(lock, "acquire")


@both
async def test_fence_grows_with_every_grant(io) -> None:
    fences = []
    for _ in range(5):
        async with io.entered(Lock("fences")) as lease:
            fences.append(lease.fence)
    assert sorted(set(fences)) == fences


# One object, many callers


@both
async def test_semaphore_object_can_be_shared_by_threads_or_tasks(io, view) -> None:
    sem, most = Semaphore("shared", 3), [0, 0]

    async def use() -> None:
        for _ in range(5):
            async with io.entered(sem) as lease:
                most[0] += 1
                most[1] = max(most)
                assert lease.held
                await io.sleep(0.001)
                most[0] -= 1

    await io.gather(*[use() for _ in range(12)])
    assert most[1] <= 3
    assert view("shared").empty


@both
async def test_release_ends_the_newest_lease_of_this_thread_or_task(io) -> None:
    sem = Semaphore("newest", 5)
    first, second = await io.do(sem, "acquire"), await io.do(sem, "acquire")
    await io.do(sem, "release")
    assert first.held and not second.held
    await io.do(first, "release")
    with pytest.raises(NotAcquired, match="holds nothing"):
        await io.do(sem, "release")


@both
async def test_release_ignores_leases_of_other_threads_and_tasks(io) -> None:
    sem = Semaphore("theirs", 5)

    async def other() -> None:
        assert not await io.do(sem, "owned")
        for method, *args in (["release"], ["extend", 5], ["reacquire"]):
            with pytest.raises(NotAcquired):
                await io.do(sem, method, *args)

    lease = await io.do(sem, "acquire")
    await io.result(io.start(other()))
    assert lease.held and await io.do(sem, "owned")


@both
async def test_thread_local_false_lets_any_thread_or_task_release(io) -> None:
    sem = Semaphore("ours", 5, thread_local=False)
    lease = await io.do(sem, "acquire")
    await io.result(io.start(io.do(sem, "release")))
    assert not lease.held


@both
async def test_lease_can_be_released_in_another_thread_or_task(io, view) -> None:
    lease = await io.do(Lock("anywhere"), "acquire")
    await io.result(io.start(io.do(lease, "release")))
    assert not lease.held and view("anywhere").empty


def test_lease_acquired_in_a_loop_can_be_released_in_a_thread(view) -> None:
    async def main() -> None:
        lease = await Lock("across").aacquire()
        await asyncio.to_thread(lease.release)

    asyncio.run(main())
    lease = Lock("across", blocking=False).acquire()
    assert lease
    asyncio.run(lease.arelease())
    assert view("across").empty


@both
async def test_with_blocks_of_one_semaphore_nest(io) -> None:
    sem = Semaphore("nested", 2)
    async with io.entered(sem) as outer:
        async with io.entered(sem) as inner:
            assert outer.held and inner.held
        assert outer.held and not inner.held
    assert not outer.held


@both
async def test_with_block_accepts_a_lease_that_was_released_inside(io) -> None:
    async with io.entered(Lock("early")) as lease:
        await io.do(lease, "release")
    lock = Lock("early")
    async with io.entered(lock):
        await io.do(lock, "release")


@both
async def test_with_block_raises_lease_lost_at_its_end(io, view) -> None:
    with pytest.raises(LeaseLost) as caught:
        async with io.entered(Lock("ended")):
            view("ended").clear()
    assert LeaseLost is type(caught.value)


@both
@pytest.mark.parametrize("kind", [Lock, RLock])
async def test_with_block_raises_the_exception_of_its_body_when_the_lease_is_lost(
    io, view, kind, caplog
) -> None:
    with pytest.raises(ZeroDivisionError):
        async with io.entered(kind("mine")):
            view("mine").clear()
            raise ZeroDivisionError
    assert "leaving 'mine'" in caplog.text


@both
@pytest.mark.parametrize("kind", [Lock, RLock])
async def test_raise_on_release_error_false_logs_a_lost_lease_at_the_end_of_a_block(
    io, view, kind, caplog
) -> None:
    """As in redis-py, the option doesn't apply to `release()`."""
    lock = kind("lenient", raise_on_release_error=False)
    async with io.entered(lock):
        view("lenient").clear()
    assert "leaving 'lenient'" in caplog.text
    await io.do(lock, "acquire")
    view("lenient").clear()
    with pytest.raises(LeaseLost):
        await io.do(lock, "release")


@both
async def test_unreferenced_lease_is_not_renewed_and_is_logged(io, view, caplog) -> None:
    caplog.set_level(logging.WARNING, "django_redis_sync")
    await io.do(Lock("dropped", timeout=0.6, renew=True), "acquire")
    gc.collect()
    await until(io, lambda: view("dropped").holding == 0)
    await until(io, lambda: "'dropped' was garbage-collected without being released" in caplog.text)


# Detach and adopt


@side_by_side
async def test_adopted_lease_is_renewed_and_released_by_its_new_owner(io, view) -> None:
    name = io.name("moving")
    async with io.entered(Lock(name, timeout=3, renew=True)) as lease:
        handle = await io.do(lease, "detach", 30)
        assert isinstance(handle, str) and not lease.held
    assert view(name).ends_in > 25
    assert await io.do(Lock(name, blocking=False), "acquire") is None
    lost: list[Lease] = []
    adopted = await io.do(Lease, "from_handle", handle, on_lost=lost.append)
    assert (lease.token, lease.fence) == (adopted.token, adopted.fence)
    assert adopted.held and adopted.remaining <= 3
    await io.sleep(4)  # longer than the lease duration
    assert adopted.held and await io.do(adopted, "owned")
    await io.do(adopted, "release")
    assert view(name).empty and not lost


@both
async def test_handle_contains_the_rest_of_max_hold(io) -> None:
    lease = await io.do(Lock("moving", max_hold=3600), "acquire")
    await io.sleep(0.2)
    handle = await io.do(lease, "detach")
    adopted = await io.do(Lease, "from_handle", handle)
    await io.sleep(0.2)
    again = await io.do(adopted, "detach")
    assert 3500 < Adoption(again, None).terms.max_hold < 3599.65
    assert 3500 < Adoption(handle, None).terms.max_hold < 3599.85


@both
async def test_detached_lease_cannot_be_released_or_renewed(io) -> None:
    lease = await io.do(Lock("gone"), "acquire")
    await io.do(lease, "detach")
    with pytest.raises(NotAcquired, match="detached already"):
        await io.do(lease, "release")
    with pytest.raises(LeaseLost):
        await io.do(lease, "renew")


@both
async def test_from_handle_raises_lease_lost_when_the_lease_was_cleared(io, view) -> None:
    handle = await io.do(await io.do(Lock("late"), "acquire"), "detach")
    view("late").clear()
    with pytest.raises(LeaseLost):
        await io.do(Lease, "from_handle", handle)


@both
async def test_handle_can_be_adopted_only_once(io) -> None:
    handle = await io.do(await io.do(Lock("twice"), "acquire"), "detach")
    first = await io.do(Lease, "from_handle", handle)
    with pytest.raises(LeaseLost, match="adopted before"):
        await io.do(Lease, "from_handle", handle)
    assert await io.do(first, "owned")
    # After a second detach, the first handle still can't be adopted.
    second = await io.do(Lease, "from_handle", await io.do(first, "detach"))
    with pytest.raises(LeaseLost):
        await io.do(Lease, "from_handle", handle)
    await io.do(second, "release")
    with pytest.raises(LeaseLost):
        await io.do(Lease, "from_handle", handle)


@both
async def test_adopted_lease_is_released_at_the_end_of_a_with_block(io, view) -> None:
    handle = await io.do(await io.do(Semaphore("adopt", 2), "acquire", permits=2), "detach")
    async with io.entered(await io.do(Lease, "from_handle", handle)) as lease:
        assert lease.permits == 2
    assert view("adopt").empty


# Losing a lease


@both
async def test_cleared_lease_calls_on_lost_and_the_signal(io, view) -> None:
    called, signalled = threading.Event(), threading.Event()

    def receive(sender: Any, lease: Lease, reason: str, **_: Any) -> None:
        if lease.name == "cleared" and reason:
            signalled.set()

    lease_lost.connect(receive)
    try:
        lock = Lock("cleared", timeout=1, renew=True, on_lost=lambda _: called.set())
        lease = await io.do(lock, "acquire")
        view("cleared").clear()
        await until(io, lambda: not lease.held)
        await until(io, lambda: called.is_set() and signalled.is_set())
    finally:
        lease_lost.disconnect(receive)
    with pytest.raises(LeaseLost):
        lease.check()
    with pytest.raises(LeaseLost):
        await io.do(lease, "release")


@side_by_side
async def test_slow_on_lost_callback_does_not_delay_renewals(io, view) -> None:
    stuck, name = threading.Event(), io.name("slow")
    lost = await io.do(
        Lock(name, timeout=0.6, renew=True, on_lost=lambda _: stuck.wait(20)), "acquire"
    )
    kept = await io.do(Lock(io.name("kept"), timeout=3, renew=True), "acquire")
    renewed = view(io.name("kept")).renewals()
    view(name).clear()
    await until(io, lambda: not lost.held)
    await until(io, renewed, 15)
    stuck.set()
    assert kept.held and await io.do(kept, "owned")


@pytest.fixture
def short_leases(settings) -> None:
    settings.REDIS_SYNC = {**settings.REDIS_SYNC, "TIMEOUT": 2.5}


@side_by_side
async def test_lease_is_held_for_three_times_its_duration(io, short_leases) -> None:
    name = io.name("long")
    async with io.entered(Lock(name)) as lease:
        assert lease.remaining <= 2.5
        await io.sleep(7.5)
        lease.check()
        assert await io.do(Lock(name, blocking=False), "acquire") is None


def test_lease_is_renewed_while_its_event_loop_is_busy(view) -> None:
    async def main() -> None:
        async with Lock("busy", timeout=3, renew=True) as lease:
            eventually(view("busy").renewals())  # on the loop's own thread
            lease.check()

    asyncio.run(main())


class Interrupted(BaseException):
    """Stands for KeyboardInterrupt, which would end the test run."""


def test_interrupted_waiter_leaves_the_queue(view, raw) -> None:
    """The exception is raised inside the blocking read, as by Ctrl-C."""

    def interrupt(number: int, frame: Any) -> None:
        raise Interrupted

    def send() -> None:
        # Wait until the thread blocks in its read, which a signal interrupts. Elsewhere, the
        # exception may be raised in a finalizer, where Python drops it, or leave redis-py's
        # socket unconnected.
        eventually(lambda: any("b" in client["flags"] for client in raw.client_list()))
        time.sleep(0.2)
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGUSR1)

    first = Lock("interrupted").acquire()
    before = signal.signal(signal.SIGUSR1, interrupt)
    sender = threading.Thread(target=send)
    try:
        sender.start()
        with pytest.raises(Interrupted):
            Lock("interrupted").acquire(blocking_timeout=20)
    finally:
        sender.join()
        signal.signal(signal.SIGUSR1, before)
    assert view("interrupted").waiting == 0
    first.release()
    assert view("interrupted").empty


# Commands


@both
async def test_uncontended_acquire_and_release_send_two_commands(io, raw) -> None:
    async with io.entered(Lock("cheap")):
        pass
    with sent() as seen:
        for _ in range(20):
            async with io.entered(Lock("cheap", blocking=False)) as lease:
                lease.check()
                assert lease.held and lease.remaining
    assert {"evalsha": 40} == seen.by_name
