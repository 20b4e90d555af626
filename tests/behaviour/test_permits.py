"""Permits and leases, in sync and async code."""

from __future__ import annotations

import asyncio
import base64
import gc
import json
import math
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from redis.exceptions import LockError, LockNotOwnedError

from django_redis_sync import Lease, LeaseLost, Lock, NotAcquired, ReadWriteLock, RLock, Semaphore

from .both import both, eventually, queued, until, within
from .watching import sent

pytestmark = [pytest.mark.usefixtures("clean_redis"), pytest.mark.promise(15)]

KINDS: dict[str, Any] = {
    "lock": Lock,
    "rlock": RLock,
    "semaphore": lambda name: Semaphore(name, 1),
    "read": lambda name: ReadWriteLock(name).read,
    "write": lambda name: ReadWriteLock(name).write,
}


@pytest.mark.parametrize(("limit", "tries"), [(1, 6), (10, 13), (11, 12)])
@both
async def test_semaphore_grants_exactly_as_many_permits_as_its_limit(
    io, view, limit, tries
) -> None:
    async def cycle() -> None:
        await io.do(await io.do(Semaphore("x", limit), "acquire"), "release")

    await io.gather(*[cycle() for _ in range(limit)])
    tried = [io.do(Semaphore("x", limit), "acquire", False) for _ in range(tries)]
    leases = [lease for lease in await io.gather(*tried) if lease]
    assert (limit, 0) == (view("x").holding, view("x").waiting)
    assert limit == len(leases) == len({lease.token for lease in leases})
    assert limit == len({lease.fence for lease in leases})


@both
async def test_acquire_obeys_its_own_limit_if_callers_of_a_name_set_different_limits(io) -> None:
    """Callers give different limits for one name. A caller with a lower limit is rejected, and
    the leases that were granted with a higher limit continue."""
    granted = []
    for limit, permits in ((5, 3), (5, 3), (5, 2), (5, 1), (4, 1), (6, 1)):
        sem = Semaphore("weighed", limit, blocking=False)
        granted.append(await io.do(sem, "acquire", permits=permits))
    assert [3, None, 2, None, None, 1] == [lease and lease.permits for lease in granted]
    assert all([await io.do(lease, "owned") for lease in granted if lease])


@both
async def test_waiter_waits_for_its_blocking_timeout_and_leaves_the_queue(io, view) -> None:
    first = await io.do(Lock("vain"), "acquire")
    for seconds in (0, 0.05, 1.2):
        options = {"blocking_timeout": seconds} if seconds else {"blocking": False}
        with within(seconds + 2) as watch:
            assert await io.do(Lock("vain"), "acquire", **options) is None
            assert seconds <= watch.seconds and view("vain").waiting == 0
    await io.do(first, "release")
    assert await io.do(Lock("vain", blocking=False), "acquire")


@pytest.mark.parametrize("options", [{"blocking": False}, {"blocking_timeout": 0.02}], ids=str)
@pytest.mark.parametrize(
    "kinds", ["lock semaphore", "semaphore rlock", "rlock lock", "write read", "read write"]
)
@both
async def test_locks_of_different_classes_exclude_each_other(io, kinds: str, options) -> None:
    holder, kind = kinds.split()
    lease = await io.result(io.start(io.do(KINDS[holder]("x"), "acquire")))
    assert await io.result(io.start(io.do(KINDS[kind]("x"), "acquire", **options))) is None
    await io.do(lease, "release")


@both
async def test_with_statement_raises_not_acquired_with_the_reason(io) -> None:
    async with io.entered(Lock("why")):
        for reason in ("full", "timeout"):
            options = {"blocking": False} if reason == "full" else {"blocking_timeout": 0.05}
            with pytest.raises(NotAcquired, match=r"'why'") as caught:
                async with io.entered(Lock("why", **options)):
                    pytest.fail("two callers are in the block")
            assert (reason, "why") == (caught.value.reason, caught.value.lock_name)
            assert ("all permits are in use" in str(caught.value)) == (reason == "full")
            assert NotAcquired is type(caught.value) and isinstance(caught.value, LockError)


@both
async def test_unfair_acquire_can_overtake_a_waiter_that_needs_more_permits(io, view) -> None:
    first = await io.do(Semaphore("unfair", 3), "acquire", permits=2)
    large = await queued(io, Semaphore("unfair", 3), view("unfair"), permits=3)
    assert await io.do(Semaphore("unfair", 3, blocking=False), "acquire") is None
    small = await io.do(Semaphore("unfair", 3, fair=False, blocking=False), "acquire")
    await io.do(first, "release")
    await io.do(small, "release")
    assert (await io.result(large)).permits == 3


# A lease


@both
async def test_lease_has_attributes_for_name_permits_token_and_times(io) -> None:
    lease = await io.do(Lock("says", timeout=20), "acquire")
    assert lease and lease.held and ("says", 1, 32) == (lease.name, lease.permits, len(lease.token))
    assert 15 < lease.remaining <= 20
    assert abs(datetime.now(timezone.utc) - lease.acquired_at) < timedelta(minutes=2)
    assert lease.token not in repr(lease)
    lease.check()
    await io.do(lease, "release")
    assert not lease and not lease.held and lease.remaining == 0
    with pytest.raises(LeaseLost):
        lease.check()


@both
async def test_renew_extend_and_reacquire_change_the_expiry(io, view) -> None:
    lock = Lock("moved", timeout=10)
    lease = await io.do(lock, "acquire")
    replace = {"replace_ttl": True}
    for thing, method, args, options, seconds in (
        (lease, "renew", [40], {}, 40),
        (lease, "extend", [20], {}, 60),
        (lease, "extend", [15], replace, 15),
        (lease, "renew", [], {}, 10),
        (lock, "extend", [90], replace, 90),
        (lease, "reacquire", [], {}, 10),
        (lock, "extend", [50], {}, 60),
        (lock, "reacquire", [], {}, 10),
    ):
        done = await io.do(thing, method, *args, **options)
        assert done is (None if method == "renew" else True)
        assert seconds - 5 < lease.remaining <= seconds, method
        assert seconds - 5 < view("moved").ends_in <= seconds + 0.1, method


@pytest.mark.parametrize("end", ["release", "detach", "clear"])
@both
async def test_methods_of_an_ended_lease_raise_and_change_nothing(io, view, end: str) -> None:
    lease = await io.do(Lock("once"), "acquire")
    handle = view("once").clear() if end == "clear" else await io.do(lease, end)
    if handle:
        other = await io.do(Lease, "from_handle", handle)
    else:
        other = await io.do(Lock("once", blocking=False), "acquire")
    expiry = view("once").end
    for method, *args in (["renew"], ["extend", 60], ["reacquire"], ["detach"]):
        with pytest.raises(LeaseLost) as caught:
            await io.do(lease, method, *args)
        assert LeaseLost is type(caught.value) and isinstance(caught.value, LockNotOwnedError)
    words = "Redis no longer has" if end == "clear" else f"{end.removesuffix('e')}ed already"
    with pytest.raises(LeaseLost if end == "clear" else NotAcquired, match=words):
        await io.do(lease, "release")
    assert await io.do(other, "owned") and not await io.do(lease, "owned")
    assert expiry == view("once").end


@both
async def test_lease_is_renewed_until_max_hold_or_for_ever(io, view, settings) -> None:
    settings.REDIS_SYNC = {**settings.REDIS_SYNC, "TIMEOUT": 2.5}
    capped = await io.do(Lock("capped", timeout=3, renew=True, max_hold=6), "acquire")
    async with io.entered(Lock("long")) as long:
        assert long.remaining <= 2.5
        await io.sleep(4)
        assert capped.held and await io.do(capped, "owned")
        await until(io, lambda: not capped.held and view("capped").holding == 0)
        assert view("capped").now() > capped.fence / 1000 + 5000
        with pytest.raises(LeaseLost):
            capped.check()
        await until(io, lambda: view("long").now() > long.fence / 1000 + 7500)
        long.check()
        assert await io.do(Lock("long", blocking=False), "acquire") is None


def test_lease_is_renewed_while_its_event_loop_is_busy(view) -> None:
    async def main() -> None:
        async with Lock("busy", timeout=3, renew=True) as lease:
            eventually(view("busy").renewals())  # this blocks the event loop
            lease.check()

    asyncio.run(main())


@both
async def test_permanent_lease_lasts_until_it_is_released_or_cleared(io, view) -> None:
    mine = view("ever")
    for end in ("release", "clear"):
        lease = await io.do(Lock("ever", timeout=math.inf, blocking=False), "acquire")
        assert math.inf == lease.remaining and math.inf == mine.ends_in
        assert {-1} == {mine.client.pttl(key) for key in mine.left()}
        await io.do(lease, "release") if end == "release" else mine.clear()
        assert mine.empty and not await io.do(lease, "owned")
        assert all(mine.client.pttl(key) > 0 for key in mine.left())


@both
async def test_permit_stays_in_use_for_min_hold_after_an_early_release(io, view) -> None:
    """Ten hosts start a periodic job at the same time. Only the first one gets the permit,
    because `min_hold` keeps the permit in use after its release."""
    lock, ran = Lock("period", min_hold=4.0, blocking=False, thread_local=False), list[Lease]()

    async def host() -> None:
        if lease := await io.do(lock, "acquire"):
            ran.append(lease)
            await io.do(lease, "release")

    await io.gather(*[host() for _ in range(10)])
    (lease,) = ran
    assert not lease.held and await io.do(lock, "locked")
    assert 0 < view("period").ends_in <= 4.0
    again = await io.do(lock, "acquire", True, 20)
    assert again and again.fence - lease.fence >= 4_000_000
    brief = Lock("brief", min_hold=0.1, blocking=False)
    lease = await io.do(brief, "acquire")
    await io.sleep(0.2)
    await io.do(lease, "release")
    assert await io.do(brief, "acquire")


# Several callers that use one object


@both
async def test_release_raises_if_only_another_thread_or_task_has_a_lease(io, view) -> None:
    """With thread_local=False, a semaphore object also releases leases of other threads and tasks.
    A lease object can be released anywhere."""
    sem, free = Semaphore("theirs", 5), Semaphore("theirs", 5, thread_local=False)

    async def other() -> None:
        assert not await io.do(sem, "owned")
        for method, *args in (["release"], ["extend", 5], ["reacquire"]):
            with pytest.raises(NotAcquired):
                await io.do(sem, method, *args)
        await io.do(free, "release")

    lease, second = await io.do(sem, "acquire"), await io.do(free, "acquire")
    await io.result(io.start(other()))
    assert lease.held and await io.do(sem, "owned") and not second.held
    await io.result(io.start(io.do(lease, "release")))
    assert not lease.held and view("theirs").empty


def test_lease_of_an_event_loop_can_be_released_in_a_thread_and_vice_versa(view) -> None:
    async def main() -> None:
        lease = await Lock("across").aacquire()
        await asyncio.to_thread(lease.release)

    asyncio.run(main())
    lease = Lock("across", blocking=False).acquire()
    asyncio.run(lease.arelease())
    assert view("across").empty


# Detach and adopt


@both
async def test_adopted_lease_is_renewed_and_released_by_its_new_owner(io, view) -> None:
    sem, lost = Semaphore("moving", 2, timeout=3, renew=True), list[Lease]()
    lease = await io.do(sem, "acquire", permits=2)
    handle = await io.do(lease, "detach", 30)
    assert isinstance(handle, str) and not lease.held and view("moving").ends_in > 25
    assert await io.do(Semaphore("moving", 2, blocking=False), "acquire") is None
    adopted = await io.do(Lease, "from_handle", handle, on_lost=lost.append)
    async with io.entered(adopted):
        assert (lease.token, lease.fence, 2) == (adopted.token, adopted.fence, adopted.permits)
        assert adopted.held and adopted.remaining <= 3
        await io.sleep(4)  # longer than the lease duration
        assert adopted.held and await io.do(adopted, "owned")
    assert view("moving").empty and not lost


@both
async def test_time_held_before_a_detach_is_subtracted_from_max_hold(io) -> None:
    lease, rest = await io.do(Lock("moving", max_hold=3600), "acquire"), 3600.0
    for _ in range(2):
        await io.sleep(0.2)
        handle = await io.do(lease, "detach")
        before, rest = rest, json.loads(base64.urlsafe_b64decode(handle))[8]
        assert 3500 < rest < before - 0.15
        lease = await io.do(Lease, "from_handle", handle)


@both
async def test_handle_can_be_adopted_only_once(io, view) -> None:
    async def fails(handle: str, words: str = "ended") -> None:
        with pytest.raises(LeaseLost, match=words):
            await io.do(Lease, "from_handle", handle)

    handle = await io.do(await io.do(Lock("twice"), "acquire"), "detach")
    first = await io.do(Lease, "from_handle", handle)
    await fails(handle, "adopted before")
    assert await io.do(first, "owned")
    again = await io.do(first, "detach")
    second = await io.do(Lease, "from_handle", again)
    await fails(handle)
    view("twice").clear()
    assert not await io.do(second, "owned")
    await fails(again)


@pytest.mark.parametrize("kind", [Lock, RLock])
@both
async def test_with_statement_raises_lease_lost_only_if_its_body_raises_no_error(
    io, view, kind, caplog
) -> None:
    """With raise_on_release_error=False, the block logs the loss instead of raising LeaseLost. As
    in redis-py, the option doesn't apply to `release()`."""
    failed = "the block of 'ended' raised an exception, and then the release failed"
    lenient = "the release of 'ended' at the end of its block failed"
    logged = {LeaseLost: [], ZeroDivisionError: [failed], None: [lenient]}
    for error, expected in logged.items():
        lock, caught = kind("ended", raise_on_release_error=error is not None), None
        caplog.clear()
        try:
            async with io.entered(lock):
                view("ended").clear()
                _ = 1 / (error is not ZeroDivisionError)
        except Exception as raised:
            caught = type(raised)
        assert error is caught
        messages = [record.getMessage().partition(": ")[0] for record in caplog.records]
        assert expected == [text for text in messages if "'ended'" in text and "release" in text]
        await io.do(lock, "acquire")
        view("ended").clear()
        with pytest.raises(LeaseLost):
            await io.do(lock, "release")


@both
async def test_unreferenced_lease_is_not_renewed_and_is_logged(io, view, caplog) -> None:
    await io.do(Lock("dropped", timeout=0.6, renew=True), "acquire")
    gc.collect()
    await until(io, lambda: view("dropped").holding == 0)
    await until(io, lambda: "'dropped' was garbage-collected without being released" in caplog.text)


@both
async def test_uncontended_acquire_and_release_send_two_commands(io, raw) -> None:
    fences = []
    async with io.entered(Lock("cheap")):
        pass
    with sent() as seen:
        for _ in range(20):
            async with io.entered(Lock("cheap", blocking=False)) as lease:
                lease.check()
                assert lease.held and lease.remaining
                fences.append(lease.fence)
    assert {"evalsha": 40} == seen.by_name
    assert sorted(set(fences)) == fences
