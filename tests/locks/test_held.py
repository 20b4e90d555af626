"""`held` of a lock: whether this thread or task holds it. And short waits, which end on time."""

from __future__ import annotations

import time
from typing import Any

import pytest

from django_redis_sync import Lock, NotAcquired, ReadWriteLock, RLock, Semaphore
from tests.behaviour.both import both, eventually

pytestmark = pytest.mark.promise(8)


@pytest.mark.parametrize(
    "kind", [Lock, RLock, lambda name: Semaphore(name, 2)], ids=["Lock", "RLock", "Semaphore"]
)
@both
async def test_lock_is_held_by_the_caller_that_took_it_and_by_no_other(
    io: Any, clean_redis: None, kind: Any
) -> None:
    async def held_by_another() -> bool:
        return lock.held

    lock = kind("mine")
    assert not lock.held
    for _ in range(2):
        assert await io.do(lock, "acquire")
        assert lock.held and not await io.result(io.start(held_by_another()))
        assert lock.held == await io.do(lock, "owned")
        await io.do(lock, "release")
        assert not lock.held
    async with io.entered(lock):
        assert lock.held
    assert not lock.held


@both
async def test_release_without_an_own_lease_says_how_to_release_that_of_another_caller(
    io: Any, clean_redis: None
) -> None:
    lock, shared = Lock("mine"), Lock("yours", thread_local=False)

    async def take() -> list[Any]:
        return [await io.do(lock, "acquire"), await io.do(shared, "acquire")]

    lease, _ = await io.result(io.start(take()))
    with pytest.raises(NotAcquired, match=r"release the lease.* thread_local=False") as caught:
        await io.do(lock, "release")
    assert ("", "mine") == (caught.value.reason, caught.value.lock_name)
    await io.do(lease, "release")
    await io.do(shared, "release")
    assert not await io.do(lock, "locked") and not await io.do(shared, "locked")


@both
async def test_lock_is_not_held_after_its_lease_expired(io: Any, clean_redis: None) -> None:
    lock = Lock("short", timeout=0.1)
    await io.do(lock, "acquire")
    await io.sleep(0.2)
    assert not lock.held


@both
async def test_sides_of_a_read_write_lock_are_held_separately(io: Any, clean_redis: None) -> None:
    lock = ReadWriteLock("sides")
    async with io.entered(lock.write):
        assert (False, True) == (lock.read.held, lock.write.held)
        await io.do(lock, "downgrade")
        assert (True, False) == (lock.read.held, lock.write.held)


@pytest.mark.promise(13)
@pytest.mark.parametrize("seconds", [0.01, 0.03, 0.11])
def test_short_wait_of_sync_code_does_not_end_at_the_next_tick_of_redis(
    clean_redis: None, seconds: float
) -> None:
    """Redis ends BLPOP at ticks of 0.1 s, so three waits in a row would take about 0.3 s. On a busy
    machine, some waits end late for other reasons: try again."""

    def three_waits() -> float:
        begin = time.monotonic()
        for _ in range(3):
            assert Lock("busy").acquire(blocking_timeout=seconds) is None
        return time.monotonic() - begin

    with Lock("busy"):
        assert three_waits() >= 3 * seconds * 0.9
        eventually(lambda: three_waits() < 3 * seconds + 0.12)


def test_short_wait_of_sync_code_gets_a_permit_that_becomes_free(clean_redis: None) -> None:
    Lock("soon", timeout=0.05).acquire()
    assert Lock("soon").acquire(blocking_timeout=30)
