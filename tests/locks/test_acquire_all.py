"""`acquire_all` acquires several names in a fixed order. It acquires all of them, or none."""

from __future__ import annotations

import asyncio
import pickle
import random
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from django_redis_sync import (
    LeaseLost,
    Lock,
    NotAcquired,
    ReadWriteLock,
    RLock,
    Semaphore,
    Unavailable,
    acquire_all,
)
from django_redis_sync.exceptions import WrongKind
from tests.behaviour.both import Async, both, queued
from tests.behaviour.watching import sent
from tests.support.journal import journalling
from tests.support.operators import act

pytestmark = [pytest.mark.usefixtures("clean_redis"), pytest.mark.promise(16)]


@both
async def test_acquire_all_sorts_names_and_returns_leases_in_the_given_order(io, view) -> None:
    one, other = (Semaphore("b", 1, key=key) for key in "xy")
    several = acquire_all([Lock("c"), Lock("a"), other, (Semaphore("b", 3), 2), one])
    async with io.entered(several) as leases:
        assert ["c", "a", "b@y", "b", "b@x"] == [lease.name for lease in leases]
        by_grant = sorted(leases, key=lambda lease: lease.fence)
        assert ["a", "b", "b@x", "b@y", "c"] == [lease.name for lease in by_grant]
        assert all(lease.held for lease in leases) and 2 == leases[3].permits
    assert all(view(name).empty for name in "abc")
    assert 5 == len(await io.do(several, "acquire"))
    await io.do(several, "release")
    assert all(view(name).empty for name in "abc")
    with pytest.raises(NotAcquired, match="holds nothing through this object"):
        await io.do(several, "release")


@both
async def test_acquire_all_takes_locks_of_the_same_name_on_two_servers(io, view, elsewhere) -> None:
    here, there = Lock("x"), Lock("x", using=elsewhere)
    async with io.entered(acquire_all([there, here])) as leases:
        for thing, lease in ((here, leases[1]), (there, leases[0])):
            status = await io.do(thing, "status")
            assert [lease.fence] == [holder.fence for holder in status.holders]
    async with io.entered(Lock("x", using=elsewhere)):
        assert None is await io.do(acquire_all([there, here], blocking=False), "acquire")
        assert view("x").empty, "it kept the lock of the other server"


@pytest.mark.parametrize("options", [{"blocking": False}, {"blocking_timeout": 0.1}], ids=str)
@both
async def test_acquire_all_holds_nothing_if_one_name_is_full(io, view, options: Any) -> None:
    several = acquire_all([Lock("z"), Lock("m"), Lock("a")], **options)
    async with io.entered(Lock("m")):
        assert await io.do(several, "acquire") is None
        with pytest.raises(NotAcquired, match="'m'") as caught:
            async with io.entered(several):
                pytest.fail("not all are free")
        assert NotAcquired is type(caught.value)
        assert view("a").empty and view("z").empty and view("m").waiting == 0


#: Makes the semaphores of a test, by their names in its parameters.
OBJECTS: dict[str, Any] = {
    "lock": lambda: Lock("lock"),
    "semaphore": lambda: (Semaphore("seats", 3, key="a"), 2),
    "reader": lambda: ReadWriteLock("stock").read,
    "writer": lambda: ReadWriteLock("stock").write,
    "rlock": lambda: RLock("rows"),
    "share": lambda: Semaphore("tenants", 9, share="t", share_limit=1),
    "rate": lambda: Semaphore("mails", rate="2/h"),
    "cooling": lambda: Semaphore("api", 9),
    "closed": lambda: Lock("paused"),
}


async def _in_the_way(io: Any, wanted: list[str], **options: Any) -> tuple[str, ...]:
    several = acquire_all([Lock("0"), *(OBJECTS[one]() for one in wanted)], **options)
    with pytest.raises(NotAcquired) as caught:
        async with io.entered(several):
            pytest.fail("not all are free")
    error = caught.value
    assert NotAcquired is type(error) and "0" == error.lock_name
    again = pickle.loads(pickle.dumps(error))
    assert ("full" if "blocking" in options else "timeout") == error.reason == again.reason
    assert error.lock_names == again.lock_names and str(error) == str(again)
    assert all(repr(name) in str(error) for name in error.lock_names)
    return error.lock_names


@pytest.mark.parametrize("options", [{"blocking": False}, {"blocking_timeout": 0.1}], ids=str)
@both
async def test_error_of_acquire_all_names_all_that_are_in_the_way(io, view, options: Any) -> None:
    wanted = ["lock", "semaphore", "writer", "rlock", "share", "rate", "cooling", "closed"]
    async with io.entered(Lock("0")):
        assert ("0",) == await _in_the_way(io, wanted, **options)
        held = [Lock("lock"), ReadWriteLock("stock").read, OBJECTS["share"]()]
        held += [Semaphore("seats", 3, key="a"), Semaphore("seats", 3, key="a")]
        taken = [await io.do(one, "acquire") for one in held]
        for _ in range(2):
            await io.do(await io.do(Semaphore("mails", rate="2/h"), "acquire"), "release")
        await io.do(Semaphore("api", 9), "cool_down", 900)
        with ThreadPoolExecutor(1) as thread:  # an operator's, and no command of async code
            thread.submit(act, "pause", "paused").result()
        names = ("0", "api", "lock", "mails", "paused", "seats@a", "stock", "tenants")
        assert names == await _in_the_way(io, wanted, **options)
        # A reader does not wait for a reader, one more seat is free, and other shares have room.
        free = [(Semaphore("seats", 3, key="a"), 1), ReadWriteLock("stock").read]
        free.append(Semaphore("tenants", 9, share="u", share_limit=1))
        with pytest.raises(NotAcquired) as caught:
            async with io.entered(acquire_all([Lock("0"), *free], **options)):
                pytest.fail("not all are free")
        assert ("0",) == caught.value.lock_names
        for lease in taken:
            await io.do(lease, "release")
    assert all(view(name).waiting == 0 for name in ("0", "lock", "stock", "tenants"))


@both
async def test_acquire_all_can_be_retried_when_all_rates_and_cool_downs_allow_it(io, view) -> None:
    several = [Semaphore("a", 9), Semaphore("b", rate="1/h"), Semaphore("c", 9), Lock("d")]
    await io.do(several[0], "cool_down", 60)
    await io.do(several[2], "cool_down", 900)

    async def retry_after(used: list[Semaphore]) -> float:
        with pytest.raises(NotAcquired) as caught:
            async with io.entered(acquire_all(used, blocking=False)):
                pytest.fail("not all are free")
        error = caught.value
        assert ("rate", error.retry_after) == (
            error.reason,
            pickle.loads(pickle.dumps(error)).retry_after,
        )
        return error.retry_after

    assert 30 < await retry_after([several[0], several[1], several[3]]) <= 60
    assert 800 < await retry_after(several) <= 900
    await io.do(await io.do(several[1], "acquire"), "release")
    assert 3000 < await retry_after(several) <= 3600


@both
async def test_own_rlock_is_not_in_the_way_of_acquire_all(io) -> None:
    async with io.entered(Lock("0")), io.entered(RLock("rows")):
        assert ("0",) == await _in_the_way(io, ["rlock"], blocking=False)


@both
async def test_error_of_acquire_all_remains_if_no_status_can_be_read(io, monkeypatch) -> None:
    def refuse(self: Any) -> Any:
        raise Unavailable("down")

    async def arefuse(self: Any) -> Any:
        raise Unavailable("down")

    monkeypatch.setattr(Semaphore, "status", refuse)
    monkeypatch.setattr(Semaphore, "astatus", arefuse)
    async with io.entered(Lock("0")), io.entered(Lock("lock")):
        assert ("0",) == await _in_the_way(io, ["lock", "reader"], blocking=False)


@both
async def test_acquire_all_without_an_error_reads_no_other_name(io) -> None:
    several = acquire_all([Lock("0"), Lock("1"), Lock("2")], blocking=False)
    async with io.entered(Lock("0")):
        assert await io.do(several, "acquire") is None
        with sent() as seen:
            assert await io.do(several, "acquire") is None
    assert {"evalsha": 1} == seen.by_name


@both
async def test_blocking_timeout_of_acquire_all_limits_the_sum_of_its_waits(io) -> None:
    held = [await io.do(Lock(name), "acquire") for name in "abcd"]
    several = acquire_all(map(Lock, "abcd"), blocking_timeout=4.5)
    trying = io.start(io.do(several, "acquire"))
    # No wait for a name lasts longer than 4 s. All waits last 6.5 s, longer than blocking_timeout.
    for lease, pause in zip(held, (1.5, 1, 4, 0), strict=True):
        await io.sleep(pause)
        await io.do(lease, "release")
    assert await io.result(trying) is None


@both
async def test_acquire_all_releases_all_names_if_the_acquire_of_one_name_raises(io, view) -> None:
    async with io.entered(ReadWriteLock("rw").read):
        with pytest.raises(WrongKind):
            await io.do(acquire_all([Lock("a"), Lock("b"), Lock("rw")]), "acquire")
    await io.do(Lock("slow", timeout=0.4), "acquire")
    with pytest.raises(LeaseLost, match="'quick'"):  # "quick" expires during the wait for "slow"
        await io.do(acquire_all([Lock("a"), Lock("quick", timeout=0.1), Lock("slow")]), "acquire")
    assert all(view(name).empty for name in ("a", "b", "slow"))


@both
async def test_acquire_all_raises_at_the_end_of_its_with_block_if_a_lease_was_lost(
    io, view
) -> None:
    for error, body in ((LeaseLost, None), (ZeroDivisionError, ZeroDivisionError)):
        with pytest.raises(error, match="'a'" if body is None else None):
            async with io.entered(acquire_all([Lock("a"), Lock("b")])):
                view("a").clear()
                if body is not None:
                    raise body
        assert view("b").empty
    async with io.entered(acquire_all([Lock("a", raise_on_release_error=False), Lock("b")])):
        view("a").clear()


@both
async def test_acquire_all_of_an_empty_list_needs_no_permit(io) -> None:
    nothing = acquire_all(iter(()))
    with sent() as seen:
        async with io.entered(nothing) as leases:
            assert () == leases
        assert () == await io.do(nothing, "acquire")
        await io.do(nothing, "release")
    assert {} == seen.by_name
    with pytest.raises(NotAcquired):
        await io.do(nothing, "release")


@both
async def test_acquire_all_rejects_bad_arguments_before_it_sends_anything(io) -> None:
    with sent() as seen:
        for wrong in (None, "", b"", 5, ["name"], [(Lock("a"), 1), None], [ReadWriteLock("a")]):
            with pytest.raises(TypeError, match="semaphores and locks"):
                acquire_all(wrong)
        for unpacked in ((Lock("a"), Lock("b")), (Lock("a"),)):
            with pytest.raises(TypeError, match=r"acquire_all\(\[Lock\('a'\)"):
                acquire_all(*unpacked)
        for key in (None, "x"):
            with pytest.raises(ValueError, match="each name once"):
                acquire_all([Semaphore("a", 1, key=key), Semaphore("a", 3, key=key)])
        with pytest.raises(ValueError, match=r"0 or more seconds, or math\.inf"):
            acquire_all([Lock("a")], blocking_timeout=-1)
        with pytest.raises(ValueError, match="never fit"):
            await io.do(acquire_all([Lock("a"), (Semaphore("b", 3), 4)]), "acquire")
    assert {} == seen.by_name


def test_cancelled_acquire_all_releases_the_names_that_it_acquired(view) -> None:
    async def main() -> None:
        held = await Lock("b").aacquire()
        waiting = await queued(Async(), acquire_all([Lock("b"), Lock("a")]), view("b"))
        assert view("a").holding == 1
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert view("a").empty and view("b").waiting == 0
        await held.arelease()

    asyncio.run(main())


@both
async def test_acquire_all_in_opposite_orders_does_not_deadlock(io, redis_url, view) -> None:
    """Each of 16 callers acquires two or three names, in random order. One name is an RLock."""
    names = ["left", "middle", "right"]

    async def caller(number: int) -> None:
        chance = random.Random(number)
        for _ in range(5):
            wanted = chance.sample(names, chance.choice([2, 2, 3]))
            kinds = [RLock(name) if name == "middle" else Lock(name) for name in wanted]
            async with io.entered(acquire_all(kinds)) as leases:
                assert wanted == [lease.name for lease in leases]
                await io.sleep(chance.random() / 2000)

    with journalling(redis_url) as journal:
        await io.result(io.start(io.gather(*[caller(number) for number in range(16)])))
        journal.check()
    assert all(view(name).empty for name in names)
