"""One test for each thing that the founding articles show, or leave open.

Those that take several processes are in test_articles_processes.py, redis-py's Lock is in
test_articles_redis_py.py, what is wrong with the variants there in test_articles_variants.py.
"""

from __future__ import annotations

import contextlib
import math
import random
import threading
import time
from typing import Any

import pytest
from django.core.exceptions import ImproperlyConfigured

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
from django_redis_sync.operators import doctor

from .behaviour.both import both, until
from .behaviour.child import Child
from .behaviour.watching import View
from .support.journal import journalling

pytestmark = pytest.mark.usefixtures("clean_redis")


@pytest.fixture
def view(raw: Any) -> Any:
    return lambda name: View(raw, name)


async def waiting_for(io: Any, view: View, semaphore: Semaphore, **options: Any) -> Any:
    """An acquire that is in the queue."""
    before = view.waiting
    started = io.start(io.do(semaphore, "acquire", **options))
    await until(io, lambda: view.waiting == before + 1)
    return started


# Locks


@both
async def test_lock_with_waiting_time_and_lease(io, view) -> None:
    lock = Lock("seat", timeout=0.5, blocking_timeout=20)
    first = await io.do(lock, "acquire")
    assert 0 < first.remaining <= 0.5
    assert await io.do(lock, "acquire", blocking_timeout=0.05) is None
    second = await io.do(lock, "acquire")  # the first buyer never came back
    assert second.fence > first.fence and not first.held


@both
async def test_a_buyer_who_leaves_early_never_keeps_the_lock(io, view) -> None:
    """Who stops waiting just as its turn comes has the lock and knows it, or never had it."""
    kept = 0
    for number in range(24):
        patience, late = 0.03, random.Random(number).uniform(0, 0.05)
        if number in (0, 1):  # one that surely gets it, and one that surely leaves
            patience, late = ((20, 0), (0.01, 0.2))[number]
        holder = await io.do(Lock("early"), "acquire")
        trying = io.start(io.do(Lock("early"), "acquire", blocking_timeout=patience))
        await io.sleep(late)
        await io.do(holder, "release")
        lease = await io.result(trying)
        assert view("early").holding == (1 if lease else 0)
        assert view("early").waiting == 0
        if lease:
            kept += 1
            await io.do(lease, "release")
    assert 0 < kept < 24


@both
async def test_a_lock_key_left_without_expiry_cannot_happen(io, raw, view) -> None:
    def without_expiry() -> list[bytes]:
        return [key for key in view("key").left() if raw.pttl(key) == -1]

    lease = await io.do(Lock("key"), "acquire")
    assert view("key").left() and [] == without_expiry()
    waiting = await waiting_for(io, view("key"), Lock("key", timeout=0.5))
    assert [] == without_expiry()
    await io.do(lease, "renew")
    await io.do(lease, "release")
    second = await io.result(waiting)
    assert [] == without_expiry()
    await io.do(second, "release")
    assert [] == without_expiry()


@both
async def test_locks_doctor_reports_permanent_holders(io, view) -> None:
    name = f"for-ever-{io}"  # a name is listed once a minute, and the list is emptied by each test

    def said() -> tuple[str, bool]:
        (finding,) = [finding for finding in doctor.examine() if finding.id == "permanent"]
        return finding.level, name in finding.detail

    lease = await io.do(Lock(name, timeout=math.inf), "acquire")
    await until(io, lambda: said() == ("warning", True))
    await io.do(lease, "release")
    assert ("ok", False) == said()


@both
async def test_owner_checked_release(io, redis_url, view) -> None:
    """Under a race of the release with the lease's end, nobody else's lease is touched."""
    outcomes, delay = {"released": 0, "lost": 0}, 0.02

    async def other(leases: list[Any]) -> None:
        leases.append(await io.do(Lock("race", timeout=30), "acquire"))

    with journalling(redis_url) as journal:
        # Each release aims at the end of the lease: nearer, however busy the machine is.
        while sum(outcomes.values()) < 24 or (not all(outcomes.values()) and delay > 1e-6):
            first = await io.do(Lock("race", timeout=0.02), "acquire")
            leases: list[Any] = []
            waiting = io.start(other(leases))
            await io.sleep(delay)
            try:
                await io.do(first, "release")
                outcomes["released"] += 1
                delay *= 1.3
            except LeaseLost:
                outcomes["lost"] += 1
                delay /= 1.3
            await io.result(waiting)
            for method in ("release", "renew"):
                with pytest.raises((LeaseLost, NotAcquired)):
                    await io.do(first, method)
            assert await io.do(leases[0], "owned")
            await io.do(leases[0], "release")
        journal.check()
    assert min(outcomes.values()) > 0, outcomes


@both
async def test_recursive_use(io, view) -> None:
    lock = RLock("tree")

    async def walk(depth: int) -> int:
        async with io.entered(lock) as lease:
            return lease.fence if depth == 0 else await walk(depth - 1)

    fence = await walk(20)
    assert view("tree").empty
    assert fence != await walk(0)


@both
async def test_shared_and_exclusive_locks(io, view) -> None:
    book = ReadWriteLock("book")
    readers = [await io.do(book.read, "acquire") for _ in range(3)]
    writer = await waiting_for(io, view("book"), ReadWriteLock("book").write)
    late = await waiting_for(io, view("book"), ReadWriteLock("book").read)
    for lease in readers:
        await io.do(lease, "release")
    lease = await io.result(writer)
    assert 0 == lease.permits and 1 == view("book").waiting
    await io.do(lease, "release")
    assert (await io.result(late)).held


@both
async def test_row_table_and_page_locks(io, view) -> None:
    table, row = ReadWriteLock("stock"), Lock("stock:1")
    async with io.entered(acquire_all([table.read, row])) as leases:
        assert ["stock", "stock:1"] == [lease.name for lease in leases]
        whole = await waiting_for(io, view("stock"), ReadWriteLock("stock").write)
    assert (await io.result(whole)).held


@both
async def test_a_lock_must_not_end_under_its_worker(io, view) -> None:
    async with io.entered(Lock("worker", timeout=3, renew=True)) as lease:
        await io.sleep(4)
        assert lease.held and await io.do(lease, "owned")


@both
async def test_renewal_is_capped_and_its_end_is_told(io, view) -> None:
    told = threading.Event()
    lock = Lock("hung", timeout=0.3, renew=True, max_hold=0.6, on_lost=lambda lease: told.set())
    with pytest.raises(LeaseLost):
        async with io.entered(lock) as lease:
            assert await io.do(Lock("hung"), "acquire", blocking_timeout=20)
            await until(io, told.is_set)
            assert not lease.held
            lease.check()


@both
async def test_majority_of_independent_servers(io, new_server, settings) -> None:
    """One of three may be away. More of it: the tests of topologies."""
    servers = [new_server() for _ in range(3)]
    aliases = [f"independent-{io}-{number}" for number in range(3)]
    default = settings.CACHES["default"]
    several = {
        alias: {**default, "LOCATION": server.url}
        for alias, server in zip(aliases, servers, strict=True)
    }
    settings.CACHES = {**settings.CACHES, **several}
    servers[0].stop()

    def lock(kind: type[Lock], **options: Any) -> Lock:
        return kind("quorum", using=aliases, **options)

    async with io.entered(lock(RLock)) as lease:
        assert await io.do(lock(RLock), "acquire", blocking=False) is lease
        await io.do(lock(RLock), "release")
        assert await io.do(lock(Lock, blocking_timeout=0.2), "acquire") is None
        several_at_once = acquire_all([lock(RLock), Lock("one-server")])
        async with io.entered(several_at_once) as leases:
            assert leases[0] is lease
        assert lease.held and await io.do(lease, "owned")
    async with io.entered(lock(Lock)) as next_lease:
        assert next_lease.fence > lease.fence
    with pytest.raises(ImproperlyConfigured, match="only a Lock"):
        Semaphore("x", 3, using=aliases)


# Semaphores


@both
async def test_unfair_semaphore(io, view) -> None:
    """No place in a queue for who does not wait, and no more holders than the limit."""
    sem = Semaphore("remote", 3, fair=False, timeout=0.4)
    leases = [await io.do(sem, "acquire", blocking=False) for _ in range(5)]
    assert [True] * 3 + [False] * 2 == [bool(lease) for lease in leases]
    assert await io.do(sem, "acquire", blocking_timeout=20)  # theirs ran out
    assert view("remote").holding <= 3


@both
async def test_holder_remembered_per_thread_and_per_task(io, view) -> None:
    sem = Semaphore("remembered", 10)

    async def caller() -> None:
        for _ in range(3):
            await io.do(sem, "acquire")
        await io.sleep(0.01)
        for _ in range(3):
            await io.do(sem, "release")
        with pytest.raises(NotAcquired):
            await io.do(sem, "release")

    await io.gather(*[caller() for _ in range(3)])
    assert view("remembered").empty


@both
async def test_fair_semaphore_whatever_the_clients_clocks_say(io, view, monkeypatch) -> None:
    """Each client believes in another hour; the order is the server's."""
    real, hours = time.time, iter([0, 1, -1, 2, -2, 3])
    monkeypatch.setattr(time, "time", lambda: real() + now[0])
    monkeypatch.setattr(time, "time_ns", lambda: int((real() + now[0]) * 1e9))
    now, order, waiting = [0.0], [], []
    sem = Semaphore("fair", 1)
    first = await io.do(sem, "acquire")

    async def client(number: int) -> None:
        lease = await io.do(Semaphore("fair", 1), "acquire")
        order.append(number)
        await io.do(lease, "release")

    for number, hour in enumerate(hours):
        now[0] = hour * 3600.0
        waiting.append(io.start(client(number)))
        await until(io, lambda number=number: view("fair").waiting == number + 1)
    assert first.held
    await io.do(first, "release")
    for one in waiting:
        await io.result(one)
    assert list(range(6)) == order


@both
async def test_refresh_never_revives_an_expired_lease(io, view) -> None:
    sem = Semaphore("refresh", 2, timeout=3)
    lease, other = await io.do(sem, "acquire"), await io.do(sem, "acquire")
    while other.held:
        await io.sleep(0.1)
        await io.do(lease, "renew")
    assert lease.held and not other.held
    for method, *args in (["renew"], ["extend", 60], ["reacquire"]):
        with pytest.raises(LeaseLost):
            await io.do(other, method, *args)
    assert 1 == view("refresh").holding


@both
async def test_the_incr_and_zadd_race_is_impossible(io, redis_url, view) -> None:
    """Counter, queue and owners move in one script: no journal of a storm shows a step between."""

    async def caller(number: int) -> None:
        chance = random.Random(number)
        for _ in range(8):
            sem = Semaphore("race", 3, timeout=5, fair=chance.random() < 0.8)
            patience, lease = chance.choice([None, None, 0, 0.01]), None
            # One in a hurry has a second for its answer, which a stalled machine may not give.
            with contextlib.suppress(Unavailable):
                lease = await io.do(sem, "acquire", blocking_timeout=patience)
            if lease:
                await io.sleep(chance.random() / 2000)
                await io.do(lease, "release")

    with journalling(redis_url) as journal:
        await io.gather(*[caller(number) for number in range(40)])
        await until(io, lambda: view("race").empty)
        history = journal.check()
    assert history.entries > 400


@both
async def test_weighted_permits_do_not_starve_the_large(io, view) -> None:
    """Small ones keep coming; the large one gets in when those before it have left."""
    over = threading.Event()

    async def small() -> int:
        count = 0
        while not over.is_set():
            lease = await io.do(Semaphore("weights", 4, timeout=5), "acquire")
            await io.sleep(0.002)
            await io.do(lease, "release")
            count += 1
        return count

    crowd = [io.start(small()) for _ in range(8)]
    for _ in range(3):
        large = await io.do(Semaphore("weights", 4), "acquire", permits=4, blocking_timeout=20)
        assert large and 1 == view("weights").holding
        await io.do(large, "release")
    over.set()
    assert all([await io.result(one) > 0 for one in crowd])


@both
async def test_several_names_at_once(io, view) -> None:
    async with io.entered(acquire_all([(Semaphore("seats", 10), 4), Lock("till")])) as leases:
        assert [4, 1] == [lease.permits for lease in leases]
        assert (
            await io.do(acquire_all([Lock("till"), Lock("more")], blocking=False), "acquire")
            is None
        )
        assert view("more").empty
    assert view("seats").empty and view("till").empty


@both
async def test_set_based_semaphore_without_expiry_is_a_permanent_lease(io, raw, view) -> None:
    """A crash keeps its permit, as it does in a set, a counter or a key per permit; it shows."""
    with Child("hold", "set", "inf", "hard") as holder:
        holder.line()
    lock = Lock("set")
    assert await io.do(lock, "acquire", blocking=False) is None
    (row,) = (await io.do(lock, "status")).holders
    assert row.stuck and math.inf == row.ends_in
    view("set").clear()
    async with io.entered(lock):
        pass
    assert view("set").empty


# Large numbers

LARGEST = 2**53


@both
async def test_fences_and_tickets_near_2_to_the_53(io, raw, view) -> None:
    """Reached in the year 2255. Up to there all is exact; beyond, fences stop growing, and what a
    lock excludes it still excludes."""
    keys = view("late").keys
    # Somebody is queued and somebody holds when the numbers jump.
    first = await io.do(Lock("late"), "acquire")
    order: list[int] = []
    fences: list[int] = []

    async def caller(number: int) -> None:
        lease = await io.do(Lock("late"), "acquire")
        order.append(number)
        fences.append(lease.fence)
        assert await io.do(lease, "owned")
        assert 2255 == lease.acquired_at.year
        await io.do(lease, "renew")
        await io.do(lease, "release")

    crowd = []
    for number in range(4):
        crowd.append(io.start(caller(number)))
        await until(io, lambda number=number: view("late").waiting == number + 1)
        if number == 0:
            raw.hset(keys.info, "#fence", LARGEST - 5)
    await io.do(first, "release")
    for one in crowd:
        await io.result(one)
    assert [0, 1, 2, 3] == order
    assert [LARGEST - 4, LARGEST - 3, LARGEST - 2, LARGEST - 1] == fences
    beyond = [await io.do(Semaphore("late", 3), "acquire") for _ in range(3)]
    assert [LARGEST] * 3 == [lease.fence for lease in beyond]
    assert await io.do(Semaphore("late", 3), "acquire", blocking=False) is None
    for lease in beyond:
        await io.do(lease, "release")
    assert view("late").empty


@both
async def test_tickets_near_2_to_the_53_keep_the_order(io, raw, view) -> None:
    """A ticket is the time, or one more than the last."""
    sem, queue = Lock("tickets"), view("tickets").keys.queue
    first = await io.do(sem, "acquire")
    order: list[int] = []

    async def caller(number: int) -> None:
        lease = await io.do(Lock("tickets"), "acquire")
        order.append(number)
        await io.do(lease, "release")

    crowd = []
    for number in range(5):
        crowd.append(io.start(caller(number)))
        await until(io, lambda number=number: view("tickets").waiting == number + 1)
        if number == 0:
            (token,) = raw.zrange(queue, 0, -1)
            raw.zadd(queue, {token: LARGEST - 5})
    tickets = [int(score) for _, score in raw.zrange(queue, 0, -1, withscores=True)]
    assert list(range(LARGEST - 5, LARGEST)) == tickets
    await io.do(first, "release")
    for one in crowd:
        await io.result(one)
    assert list(range(5)) == order
