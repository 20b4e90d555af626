"""ReadWriteLock: many readers or one writer, in the order of their requests."""

from __future__ import annotations

import random
import threading
from typing import Any

import pytest

from django_redis_sync import (
    Lease,
    LeaseLost,
    Lock,
    NotAcquired,
    ReadWriteLock,
    Semaphore,
    acquire_all,
)
from django_redis_sync.exceptions import UpgradeRefused, WrongKind

from .behaviour.both import both, until
from .behaviour.watching import View
from .support.journal import journalling

pytestmark = [pytest.mark.usefixtures("clean_redis"), pytest.mark.promise(16)]


@pytest.fixture
def view(raw: Any) -> Any:
    return lambda name: View(raw, name)


class Callers:
    """Callers of a ReadWriteLock that are started one after the other.

    `entered`: the callers that got the lock, in order. A caller's name starts with r (read side)
    or w (write side).
    """

    def __init__(self, io: Any, view: View, name: str) -> None:
        self.io, self.view, self.name = io, view, name
        self.entered: list[str] = []
        self.started: list[Any] = []
        self.may_leave: set[str] = set()

    async def start(self, caller: str) -> None:
        """Start `caller`, and wait until it has got the lock or waits for it."""
        present = len(self.entered) + self.view.waiting
        self.started.append(self.io.start(self._hold(caller)))
        await until(self.io, lambda: len(self.entered) + self.view.waiting > present)

    async def _hold(self, caller: str) -> None:
        lock = ReadWriteLock(self.name)
        async with self.io.entered(lock.read if caller.startswith("r") else lock.write):
            self.entered.append(caller)
            await until(self.io, lambda: caller in self.may_leave)

    async def hold(self, *callers: str) -> None:
        """Wait until these callers hold the lock, and check that no others do."""
        await until(self.io, lambda: set(callers) <= set(self.entered))
        assert sorted(callers) == sorted(set(self.entered) - self.may_leave)

    def leave(self, *callers: str) -> None:
        self.may_leave |= set(callers)

    async def end(self) -> None:
        for started in self.started:
            await self.io.result(started)


@both
async def test_read_write_lock_admits_many_readers_or_one_writer(io, view) -> None:
    lock = ReadWriteLock("many")
    readers = [await io.do(ReadWriteLock("many").read, "acquire") for _ in range(20)]
    assert view("many").holding == 20
    assert [1] * 20 == [lease.permits for lease in readers]

    async def try_(side: Any) -> Lease | None:
        return await io.result(io.start(io.do(side, "acquire", blocking=False)))

    assert await try_(lock.write) is None
    for lease in readers:
        await io.do(lease, "release")
    async with io.entered(lock.write) as writer:
        assert view("many").holding == 1 and writer.permits == 0
        assert await try_(lock.read) is None
        assert await try_(lock.write) is None
    assert view("many").empty


@both
async def test_waiting_writer_is_admitted_before_later_readers(io, view) -> None:
    callers = Callers(io, view("first"), "first")
    for caller in ("r1", "r2", "w1", "r3", "r4", "w2", "r5"):
        await callers.start(caller)
    await callers.hold("r1", "r2")
    callers.leave("r1")
    assert ["r1", "r2"] == sorted(callers.entered)
    callers.leave("r2")
    await callers.hold("w1")
    callers.leave("w1")
    await callers.hold("r3", "r4")  # together, and before the second writer
    callers.leave("r3", "r4")
    await callers.hold("w2")
    callers.leave("w2", "r5")
    await callers.end()
    last = ("w1", "w2", "r5")
    assert [*last] == [caller for caller in callers.entered if caller in last]
    assert view("first").empty


@both
async def test_reader_that_acquires_the_write_side_raises(io, view) -> None:
    lock = ReadWriteLock("upgrade")
    async with io.entered(lock.read) as lease:
        for writers in (lock.write, ReadWriteLock("upgrade").write):
            for options in ({}, {"blocking": False}, {"blocking_timeout": 5}):
                with pytest.raises(UpgradeRefused, match="it must release before") as caught:
                    await io.do(writers, "acquire", **options)
        assert UpgradeRefused is type(caught.value) and isinstance(caught.value, RuntimeError)
        with pytest.raises(UpgradeRefused):
            await io.do(acquire_all([Lock("row"), ReadWriteLock("upgrade").write]), "acquire")
        assert lease.held and view("upgrade").waiting == 0 and view("row").empty
        async with io.entered(ReadWriteLock("another").write):
            pass
    async with io.entered(lock.write):
        pass


@both
async def test_writer_that_acquires_the_read_side_raises_and_names_downgrade(io) -> None:
    async with io.entered(ReadWriteLock("down").write):
        with pytest.raises(UpgradeRefused, match="downgrade"):
            await io.do(ReadWriteLock("down").read, "acquire")


@both
async def test_another_caller_than_the_reader_waits_for_the_write_side(io, view) -> None:
    lock = ReadWriteLock("others")
    lease = await io.do(lock.read, "acquire")
    waiting = io.start(io.do(lock.write, "acquire"))
    await until(io, lambda: view("others").waiting == 1)
    await io.do(lease, "release")
    writer = await io.result(waiting)
    assert writer.permits == 0
    await io.do(writer, "release")


@both
async def test_acquire_all_with_a_read_side_makes_its_caller_a_reader(io) -> None:
    async with io.entered(acquire_all([ReadWriteLock("table").read, Lock("row:1")])):
        with pytest.raises(UpgradeRefused):
            await io.do(ReadWriteLock("table").write, "acquire")


@both
async def test_caller_with_an_expired_read_lease_can_acquire_the_write_side(io) -> None:
    lock = ReadWriteLock("gone", timeout=0.1)
    await io.do(lock.read, "acquire")
    await io.sleep(0.2)
    assert await io.do(lock.write, "acquire", blocking=False)


@both
async def test_downgrade_admits_waiting_readers_and_no_writer(io, view) -> None:
    callers = Callers(io, view("gap"), "gap")
    lock = ReadWriteLock("gap")
    async with io.entered(lock.write) as lease:
        for caller in ("r1", "r2", "w1", "r3"):
            await callers.start(caller)
        assert [] == callers.entered
        assert await io.do(lock, "downgrade") is lease
        await callers.hold("r1", "r2")  # and neither the writer nor the reader behind it
        assert lease.held and lease.permits == 1 and await io.do(lease, "owned")
        assert await io.do(lock.read, "owned") and not await io.do(lock.write, "owned")
        with pytest.raises(UpgradeRefused):
            await io.do(lock.write, "acquire")
        callers.leave("r1", "r2")
        await io.sleep(0.05)
        assert sorted(callers.entered) == ["r1", "r2"]
    await callers.hold("w1")
    callers.leave("w1", "r3")
    await callers.end()
    assert not lease.held and view("gap").empty


@both
async def test_downgrade_raises_without_a_held_write_lease(io, view) -> None:
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
async def test_name_cannot_be_a_read_write_lock_and_a_plain_lock(io) -> None:
    async with io.entered(ReadWriteLock("kind").read):
        for other in (Lock("kind"), Semaphore("kind", 3)):
            with pytest.raises(WrongKind, match="read/write") as caught:
                await io.do(other, "acquire", blocking=False)
            assert WrongKind is type(caught.value) and isinstance(caught.value, TypeError)
    async with io.entered(Semaphore("plain", 3)):
        for side in (ReadWriteLock("plain").read, ReadWriteLock("plain").write):
            with pytest.raises(WrongKind, match="plain"):
                await io.do(side, "acquire", blocking=False)


@both
async def test_read_write_lock_rejects_permits(io) -> None:
    for side in (ReadWriteLock("counted").read, ReadWriteLock("counted").write):
        with pytest.raises(ValueError, match="no permits to count"):
            await io.do(side, "acquire", permits=2)
    lock = ReadWriteLock("counted")
    assert "counted" == lock.name


@both
async def test_random_writers_never_overlap_with_other_callers(io, redis_url, view) -> None:
    reading, writing, seen, guard = [0], [0], {"r": 0, "w": 0}, threading.Lock()

    async def caller(number: int) -> None:
        chance = random.Random(number)
        for _ in range(6):
            lock, side = ReadWriteLock("storm"), chance.choice("rrrw")
            counter = reading if side == "r" else writing
            async with io.entered(lock.read if side == "r" else lock.write):
                with guard:
                    counter[0] += 1
                    seen[side] += 1
                    assert (writing[0], reading[0]) == ((1, 0) if side == "w" else (0, reading[0]))
                await io.sleep(chance.random() / 1000)
                with guard:
                    counter[0] -= 1
                if side == "w" and chance.random() < 0.5:
                    await io.do(lock, "downgrade")

    with journalling(redis_url) as journal:
        await io.gather(*[caller(number) for number in range(24)])
        journal.check()
    assert seen["r"] > 40 and seen["w"] > 10
    assert view("storm").empty
