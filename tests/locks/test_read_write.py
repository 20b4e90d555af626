"""A ReadWriteLock admits many readers or one writer, in the order of their requests."""

from __future__ import annotations

import random
import threading
from typing import Any

import pytest

from django_redis_sync import LeaseLost, Lock, NotAcquired, ReadWriteLock, Semaphore, acquire_all
from django_redis_sync.exceptions import UpgradeRefused, WrongKind
from tests.behaviour.both import both, until
from tests.behaviour.watching import View
from tests.support.journal import journalling

pytestmark = [pytest.mark.usefixtures("clean_redis"), pytest.mark.promise(16)]


@both
async def test_sides_of_a_name_on_two_servers_are_not_in_each_others_way(io, elsewhere) -> None:
    here, there = ReadWriteLock("x"), ReadWriteLock("x", using=elsewhere)
    for one, other in (
        (here.read, there.write),
        (here.write, there.read),
        (here.write, there.write),
    ):
        async with io.entered(one), io.entered(other) as lease:
            assert lease.held
    async with io.entered(there.read):
        with pytest.raises(UpgradeRefused):
            await io.do(there.write, "acquire")


class Callers:
    """Callers of a ReadWriteLock. Names of readers start with r, those of writers with w.

    `entered`: the callers that got the lock, in order.
    """

    def __init__(self, io: Any, view: View, name: str) -> None:
        self.io, self.view, self.name = io, view, name
        self.entered, self.started, self.may_leave = list[str](), list[Any](), set[str]()

    async def start(self, *callers: str) -> None:
        """Start the callers one by one. Each holds the lock or waits before the next one starts."""
        for count, caller in enumerate(callers, 1 + len(self.started)):
            self.started.append(self.io.start(self.hold(caller)))
            await until(self.io, lambda: len(self.entered) + self.view.waiting == count)  # noqa: B023

    async def hold(self, caller: str) -> None:
        lock = ReadWriteLock(self.name)
        async with self.io.entered(lock.read if caller.startswith("r") else lock.write):
            self.entered.append(caller)
            await until(self.io, lambda: caller in self.may_leave)

    async def inside(self, *callers: str) -> None:
        """Wait until these callers hold the lock, check that no others do, and let them leave."""
        await until(self.io, lambda: set(callers) <= set(self.entered))
        assert sorted(callers) == sorted(set(self.entered) - self.may_leave)
        self.may_leave |= set(callers)

    async def end(self) -> None:
        for started in self.started:
            await self.io.result(started)
        assert self.view.empty


@both
async def test_read_write_lock_admits_many_readers_or_one_writer(io, view) -> None:
    lock, full = ReadWriteLock("many"), {"blocking": False}
    readers = [await io.do(ReadWriteLock("many").read, "acquire") for _ in range(20)]
    assert [1] * 20 == [lease.permits for lease in readers]
    assert 20 == view("many").holding

    async def admitted(side: Any) -> bool:
        return await io.result(io.start(io.do(side, "acquire", **full))) is not None

    assert not await admitted(lock.write)
    for lease in readers:
        await io.do(lease, "release")
    async with io.entered(lock.write) as writer:
        assert (1, 0) == (view("many").holding, writer.permits)
        assert [False, False] == [await admitted(side) for side in (lock.read, lock.write)]
    assert view("many").empty


@both
async def test_waiting_writer_is_admitted_before_later_readers(io, view) -> None:
    callers = Callers(io, view("first"), "first")
    await callers.start("r1", "r2", "w1", "r3", "r4", "w2", "r5")
    await callers.inside("r1", "r2")
    await callers.inside("w1")
    await callers.inside("r3", "r4")  # both readers enter at once, before w2
    await callers.inside("w2")
    await callers.inside("r5")
    await callers.end()


@both
async def test_acquire_for_writing_raises_upgrade_refused_if_the_caller_is_a_reader(
    io, view
) -> None:
    lock, other = (ReadWriteLock("upgrade", blocking_timeout=10) for _ in range(2))
    async with io.entered(lock.read) as lease:
        for writer in (lock.write, other.write):
            for options in ({"blocking": False}, {"blocking_timeout": 0}):
                assert await io.do(writer, "acquire", **options) is None
            for options in ({}, {"blocking_timeout": 5}):
                with pytest.raises(UpgradeRefused, match="must release it before") as caught:
                    await io.do(writer, "acquire", **options)
        assert UpgradeRefused is type(caught.value) and isinstance(caught.value, RuntimeError)
        with pytest.raises(UpgradeRefused):
            await io.do(acquire_all([Lock("row"), other.write]), "acquire")
        assert await io.do(ReadWriteLock("upgrade", blocking=False).write, "acquire") is None
        assert await io.do(acquire_all([other.write], blocking=False), "acquire") is None
        assert lease.held and view("upgrade").waiting == 0 and view("row").empty
        # The error does not affect other callers or other names.
        assert await io.result(io.start(io.do(other.write, "acquire", blocking=False))) is None
        async with io.entered(ReadWriteLock("another").write):
            pass
    async with io.entered(lock.write):
        with pytest.raises(UpgradeRefused, match="downgrade"):
            await io.do(other.read, "acquire")
    async with io.entered(acquire_all([lock.read, Lock("row")])):
        with pytest.raises(UpgradeRefused):
            await io.do(other.write, "acquire")
    short = ReadWriteLock("upgrade", timeout=0.1)
    await io.do(short.read, "acquire")
    await io.sleep(0.2)  # the read lease expires, so the caller can write
    assert await io.do(short.write, "acquire", blocking=False)


@both
async def test_downgrade_admits_waiting_readers_and_no_writer(io, view) -> None:
    callers, lock = Callers(io, view("gap"), "gap"), ReadWriteLock("gap", blocking_timeout=10)
    async with io.entered(lock.write) as lease:
        await callers.start("r1", "r2", "w1", "r3")
        assert [] == callers.entered
        assert await io.do(lock, "downgrade") is lease
        await callers.inside("r1", "r2")  # w1 still waits, and r3 waits behind w1
        assert (True, 1) == (lease.held, lease.permits)
        assert await io.do(lock.read, "owned") and not await io.do(lock.write, "owned")
        with pytest.raises(UpgradeRefused):
            await io.do(lock.write, "acquire")
        with pytest.raises(TypeError, match="only a writer's lease"):
            await io.do(lease, "downgrade")
        assert ["r1", "r2"] == sorted(callers.entered)
    await callers.inside("w1")
    await callers.inside("r3")
    await callers.end()
    assert not lease.held


@both
async def test_downgrade_raises_if_the_caller_holds_no_write_lease(io, view) -> None:
    lock = ReadWriteLock("nothing")
    with pytest.raises(NotAcquired):
        await io.do(lock, "downgrade")
    async with io.entered(lock.read) as lease:
        with pytest.raises(NotAcquired):
            await io.do(lock, "downgrade")
        with pytest.raises(TypeError, match="only a writer's lease"):
            await io.do(lease, "downgrade")
    await io.do(lock.write, "acquire")
    view("nothing").clear()
    with pytest.raises(LeaseLost):
        await io.do(lock, "downgrade")


@both
async def test_acquire_raises_wrong_kind_while_another_kind_of_lock_holds_the_name(io) -> None:
    plain, lock = (Lock("kind"), Semaphore("kind", 3)), ReadWriteLock("kind")
    for holder, others, message in ((lock.read, plain, "read/"), (plain[1], [lock.write], "plain")):
        async with io.entered(holder):
            for other in others:
                with pytest.raises(WrongKind, match=message) as caught:
                    await io.do(other, "acquire", blocking=False)
                assert WrongKind is type(caught.value) and isinstance(caught.value, TypeError)
    for side in (lock.read, lock.write):
        with pytest.raises(ValueError, match="read/write lock must be 1"):
            await io.do(side, "acquire", permits=2)


@both
async def test_random_writers_never_overlap_with_other_callers(io, redis_url, view) -> None:
    inside, seen, guard = {"r": 0, "w": 0}, {"r": 0, "w": 0}, threading.Lock()

    async def caller(number: int) -> None:
        chance = random.Random(number)
        for _ in range(6):
            lock, side = ReadWriteLock("storm"), chance.choice("rrrw")
            async with io.entered(lock.read if side == "r" else lock.write):
                with guard:
                    inside[side] += 1
                    seen[side] += 1
                    assert 0 == inside["w"] or {"r": 0, "w": 1} == inside
                await io.sleep(chance.random() / 1000)
                with guard:
                    inside[side] -= 1
                if side == "w" and chance.random() < 0.5:
                    await io.do(lock, "downgrade")

    with journalling(redis_url) as journal:
        await io.gather(*[caller(number) for number in range(24)])
        journal.check()
    assert seen["r"] > 40 and seen["w"] > 10, "too few readers or writers"
    assert view("storm").empty
