"""acquire_all: acquires several names in a fixed order, all or none."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest

from django_redis_sync import (
    LeaseLost,
    Lock,
    NotAcquired,
    ReadWriteLock,
    RLock,
    Semaphore,
    acquire_all,
)
from django_redis_sync.exceptions import WrongKind

from .behaviour.both import both, until
from .behaviour.watching import View, sent
from .support.journal import journalling

pytestmark = [pytest.mark.usefixtures("clean_redis"), pytest.mark.promise(16)]


@pytest.fixture
def view(raw: Any) -> Any:
    return lambda name: View(raw, name)


@both
async def test_acquire_all_returns_the_leases_in_the_order_given(io, view) -> None:
    names = ["c", "a", "b"]
    async with io.entered(acquire_all([Lock(name) for name in names])) as leases:
        assert names == [lease.name for lease in leases]
        # They are acquired in the order of their names.
        assert ["a", "b", "c"] == [x.name for x in sorted(leases, key=lambda x: x.fence)]
        assert all(lease.held for lease in leases)
    assert all(view(name).empty for name in names)


@both
async def test_acquire_all_works_without_a_block(io, view) -> None:
    several = acquire_all([Lock("one"), Lock("two")])
    leases = await io.do(several, "acquire")
    assert len(leases) == 2 and all(lease.held for lease in leases)
    assert await io.do(acquire_all([Lock("two")], blocking=False), "acquire") is None
    await io.do(several, "release")
    assert view("one").empty and view("two").empty
    with pytest.raises(NotAcquired):
        await io.do(several, "release")


@both
async def test_acquire_all_holds_nothing_if_one_name_is_full(io, view) -> None:
    async with io.entered(Lock("m")):
        for options in ({"blocking": False}, {"blocking_timeout": 0.1}, {"blocking_timeout": 0}):
            several = acquire_all([Lock("z"), Lock("m"), Lock("a")], **options)
            assert await io.do(several, "acquire") is None
            with pytest.raises(NotAcquired, match="'m'") as caught:
                async with io.entered(several):
                    pytest.fail("not all are free")
            assert NotAcquired is type(caught.value)
            assert view("a").empty and view("z").empty and view("m").waiting == 0


@both
async def test_blocking_timeout_applies_to_all_names_together(io) -> None:
    held = [await io.do(Lock(name), "acquire") for name in "abcd"]
    several = acquire_all([Lock(name) for name in "abcd"], blocking_timeout=4.5)
    trying = io.start(io.do(several, "acquire"))
    # The last two are free after the timeout, but before it would end if it began anew with each.
    for lease, pause in zip(held, (1.5, 1, 4, 0), strict=True):
        await io.sleep(pause)
        await io.do(lease, "release")
    assert await io.result(trying) is None


@both
async def test_error_for_one_name_releases_the_others(io, view) -> None:
    async with io.entered(ReadWriteLock("rw").read):
        with pytest.raises(WrongKind):
            await io.do(acquire_all([Lock("a"), Lock("b"), Lock("rw")]), "acquire")
    assert view("a").empty and view("b").empty


@both
async def test_lease_that_expires_while_others_are_awaited_raises(io, view) -> None:
    await io.do(Lock("slow", timeout=0.4), "acquire")
    several = acquire_all([Lock("quick", timeout=0.1), Lock("slow")])
    with pytest.raises(LeaseLost, match="'quick'"):
        await io.do(several, "acquire")
    assert view("slow").empty


@both
async def test_exception_of_the_body_replaces_lease_lost(io, view) -> None:
    with pytest.raises(ZeroDivisionError):
        async with io.entered(acquire_all([Lock("a"), Lock("b")])):
            view("a").clear()
            raise ZeroDivisionError
    assert view("b").empty


@both
async def test_lost_lease_raises_at_the_end_of_the_block(io, view) -> None:
    with pytest.raises(LeaseLost, match="'a'"):
        async with io.entered(acquire_all([Lock("a"), Lock("b")])):
            view("a").clear()
    assert view("b").empty
    async with io.entered(acquire_all([Lock("a", raise_on_release_error=False), Lock("b")])):
        view("a").clear()


@both
async def test_acquire_all_rejects_bad_arguments_before_it_sends_anything(io) -> None:
    with sent() as seen:
        for wrong in ([], ["name"], [(Lock("a"), 1), None], [ReadWriteLock("a")]):
            with pytest.raises(TypeError, match="semaphores and locks"):
                acquire_all(wrong)
        with pytest.raises(ValueError, match="each name once"):
            acquire_all([Lock("a"), Semaphore("a", 3)])
        with pytest.raises(ValueError, match="blocking_timeout"):
            acquire_all([Lock("a")], blocking_timeout=-1)
        with pytest.raises(ValueError, match="never fit"):
            await io.do(acquire_all([Lock("a"), (Semaphore("b", 3), 4)]), "acquire")
    assert {} == seen.by_name


def test_cancelled_acquire_all_releases_what_it_has(view) -> None:
    async def main() -> None:
        held = await Lock("b").aacquire()
        waiting = asyncio.create_task(acquire_all([Lock("b"), Lock("a")]).aacquire())
        while not view("b").waiting:
            await asyncio.sleep(0.01)
        assert view("a").holding == 1
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert view("a").empty and view("b").waiting == 0
        await held.arelease()

    asyncio.run(main())


@both
async def test_acquire_all_in_opposite_orders_does_not_deadlock(io, redis_url, view) -> None:
    """16 callers acquire random names at once, in any order. One name is an RLock."""
    names = ["left", "middle", "right"]
    done = []

    async def caller(number: int) -> None:
        chance = random.Random(number)
        for _ in range(5):
            wanted = chance.sample(names, chance.choice([2, 2, 3]))
            kinds = [RLock(name) if name == "middle" else Lock(name) for name in wanted]
            async with io.entered(acquire_all(kinds)) as leases:
                assert wanted == [lease.name for lease in leases]
                await io.sleep(chance.random() / 2000)
        done.append(number)

    with journalling(redis_url) as journal:
        await io.result(io.start(io.gather(*[caller(number) for number in range(16)])))
        journal.check()
    assert 16 == len(done)
    assert all(view(name).empty for name in names)


@both
async def test_acquire_all_combines_a_shared_table_lock_with_row_locks(io, view) -> None:
    def change(row: int) -> acquire_all:
        return acquire_all([ReadWriteLock("accounts").read, Lock(f"accounts:{row}")])

    async def acquire_and_release(names: acquire_all) -> bool:
        leases = await io.do(names, "acquire")
        if leases:
            await io.do(names, "release")
        return leases is not None

    def can_acquire(*semaphores: Semaphore) -> Any:
        names = acquire_all(semaphores, blocking=False)
        return io.result(io.start(acquire_and_release(names)))

    table = ReadWriteLock("accounts")
    async with io.entered(change(1)):
        assert await can_acquire(table.read, Lock("accounts:2"))  # another row
        assert not await can_acquire(table.read, Lock("accounts:1"))  # the same row
        assert not await can_acquire(table.write)  # the whole table
    async with io.entered(table.write):
        assert not await can_acquire(table.read, Lock("accounts:2"))
        waiting = io.start(acquire_and_release(change(3)))
        await until(io, lambda: view("accounts").waiting == 1)
    assert await io.result(waiting)


def test_keys_of_a_name_are_acquired_in_order_and_only_once() -> None:
    one, other = (Semaphore("a", 1, key=key) for key in "xy")
    with acquire_all([other, one]) as leases:
        assert ["a@y", "a@x"] == [lease.name for lease in leases]
        assert leases[1].fence < leases[0].fence
    with pytest.raises(ValueError, match="each name once"):
        acquire_all([one, Semaphore("a", 1, key="x")])
