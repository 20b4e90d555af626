"""Each call ends within its time limit if the server, the pool, or the network hangs."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import redis
import redis.asyncio
from django.conf import settings
from django.core.management import CommandError
from django.http import HttpResponse
from django.test import RequestFactory
from redis import BlockingConnectionPool, ConnectionPool
from redis import exceptions as errors

from django_redis_sync import Lock, Unavailable, semaphore_required
from django_redis_sync.signals import outage_changed
from tests.support.backends import pool_of
from tests.support.no_threads import NoThreads

from .both import both, eventually, queued, until, within
from .conftest import ATTEMPT, Impatient
from .watching import count_of, shown

pytestmark = pytest.mark.promise(13)

#: Seconds after which a call has clearly exceeded its time limit of 2 * ATTEMPT.
TOO_LATE = 5 * ATTEMPT
#: Time limit in seconds for a call that must not wait for a connection of the pool. If the call
#: waited, it would take at least 20 s.
SOON = 9


@both
async def test_waiter_ends_soon_after_its_timeout_when_the_server_hangs(io, bench) -> None:
    held = await io.do(bench.lock(), "acquire")
    waiting = await queued(io, bench.lock(), bench.view(), blocking_timeout=2)
    bench.server.pause()
    try:
        # After its blocking_timeout of 2 s, the waiter has at most 2 s more for leaving the queue.
        with within(6), pytest.raises(Unavailable):
            await io.result(waiting)
    finally:
        bench.server.resume()
    await io.do(held, "release")


def test_locks_status_ends_within_its_time_limit_when_the_server_hangs(private, alias) -> None:
    timeouts = {"socket_timeout": 30, "socket_connect_timeout": 30}
    name = alias(private.url, CONNECTION_POOL_KWARGS=timeouts)
    assert {} == shown(using=name)
    private.pause()
    with within(SOON), pytest.raises(CommandError):
        shown(using=name)


class Old(ConnectionPool):
    """A pool as in earlier versions of redis-py. If all its connections are in use, it raises a
    plain ConnectionError."""


def raises_when_exhausted(pool: ConnectionPool) -> None:
    raise errors.ConnectionError("Too many connections")


class Slow(ConnectionPool):
    """A project's own pool class, which takes 20 s to return a connection."""

    def get_connection(self, *args: Any, **options: Any) -> Any:
        time.sleep(20)
        return super().get_connection(*args, **options)


@pytest.mark.parametrize("kind", [ConnectionPool, BlockingConnectionPool, Slow, Old])
@both
async def test_calls_do_not_wait_for_an_exhausted_pool(
    io, private, alias, monkeypatch, kind: Any
) -> None:
    name = alias(
        private.url,
        CONNECTION_POOL_CLASS=f"{kind.__module__}.{kind.__qualname__}",
        CONNECTION_POOL_KWARGS={"max_connections": 2},
    )
    lock, pool = Lock("x", using=name), pool_of(name)
    taken = [] if kind in (Slow, Old) else [pool.get_connection() for _ in range(2)]
    if kind is Old:
        monkeypatch.setattr(ConnectionPool, "get_connection", raises_when_exhausted)
    with within(SOON):
        lease = await io.do(lock, "acquire", False)
    with within(SOON):
        assert await io.do(lock, "acquire", False) is None
        assert await io.do(lock, "acquire", blocking_timeout=1) is None
    with within(SOON):
        await until(io, lambda: "x" in shown(using=name))
        assert 1 == shown("x", name)["x"]["holding"] == count_of("x", "granted", name)
    with within(SOON):
        await io.do(lease, "renew")
        await io.do(lease, "release")
    with within(SOON):
        assert not await io.do(lock, "locked")
        assert 0 == (await io.do(lock, "status")).holding
    for connection in taken:
        pool.release(connection)


clients: dict[str, Any] = {}


def blocking_client(alias: str) -> Any:
    url = settings.CACHES[alias]["LOCATION"]
    pool = redis.asyncio.BlockingConnectionPool.from_url(url, max_connections=2, timeout=0.1)
    clients[alias] = redis.asyncio.Redis(connection_pool=pool)
    return clients[alias]


def test_async_call_ends_within_its_time_limit_when_its_pool_blocks(bench, settings) -> None:
    """The pool has no free connection, so the acquire and the release fail. A background thread
    then sends the release through a connection of another pool."""
    settings.REDIS_SYNC = {**settings.REDIS_SYNC, "ASYNC_CLIENT": f"{__name__}.blocking_client"}

    async def main() -> None:
        lease = await bench.lock().aacquire()
        pool, taken = clients[bench.alias].connection_pool, []
        with contextlib.suppress(errors.ConnectionError):
            while True:
                taken.append(await pool.get_connection())
        pool.timeout = 20
        assert taken
        for call in (bench.lock("y").aacquire(blocking=False), lease.arelease()):
            with within(TOO_LATE), pytest.raises(Unavailable):
                await call
        for connection in taken:
            await pool.release(connection)

    asyncio.run(main())
    eventually(lambda: bench.view().empty, 20)  # the lease would expire after 30 s


@both
async def test_call_ends_soon_when_no_thread_can_start(io, private, alias, monkeypatch) -> None:
    with NoThreads(monkeypatch), within(SOON):
        lease = await io.do(Lock("x", using=alias(private.url)), "acquire")
        await io.do(lease, "release")


# A busy process reads replies late, but must not report a healthy Redis as down

#: Seconds for which other code blocks the event loop or holds the GIL. A `Hurried` lock waits only
#: 0.3 s for a reply.
BUSY = 0.7


class Hurried(Impatient):
    _attempt = 0.3


@pytest.mark.parametrize("tasks", [20, 1], ids=["connected", "connecting"])
def test_blocked_event_loop_reads_the_replies_that_arrived_meanwhile(raw, tasks: int) -> None:
    async def cycles(name: str, times: int) -> None:
        for _ in range(times):
            lease = await Hurried(name).aacquire(blocking_timeout=20)
            await lease.arelease()

    async def main() -> None:
        if tasks > 1:
            await cycles("warm", 1)
        busy = [asyncio.ensure_future(cycles(f"busy-{i}", 3)) for i in range(tasks)]
        while not all(task.done() for task in busy):
            await asyncio.sleep(0.001)
            await asyncio.sleep(0.001)
            time.sleep(BUSY)  # blocks the event loop, like a sync call in async code
        await asyncio.gather(*busy)

    asyncio.run(main())


def test_replies_that_arrive_while_a_thread_waits_for_the_gil_are_not_timeouts(raw) -> None:
    def work(number: int) -> None:
        for _ in range(3):
            Hurried(f"thread-{number}").acquire(blocking_timeout=20).release()

    def hog() -> None:
        """Hold the GIL for BUSY seconds at a time, as a long call in C does."""
        count = 2_000_000
        while not over.is_set():
            began = time.perf_counter()
            sum(range(count))
            # Adapt to the current speed of the machine.
            count = max(10_000, int(count * BUSY / max(1e-3, time.perf_counter() - began)))
            time.sleep(0.001)

    over = threading.Event()
    hogging = threading.Thread(target=hog, daemon=True)
    hogging.start()
    try:
        with ThreadPoolExecutor(4) as threads:
            list(threads.map(work, range(4)))
    finally:
        over.set()
        hogging.join()


@pytest.mark.parametrize(("busy", "waits", "each"), [(0.1, 20, 5), (BUSY, 0.2, 10)])
def test_busy_worker_process_does_not_mistake_a_delay_for_an_outage(
    raw, busy, waits, each: int
) -> None:
    """If the worker reported an outage by mistake, `on_outage="local"` would admit `limit` requests
    in each process."""
    outages: list[bool] = []

    def note(down: bool, **_: Any) -> None:
        outages.append(down)

    inside, most, statuses = 0, 0, Counter[int]()

    @semaphore_required("four", limit=4, blocking_timeout=waits, on_outage="local")
    async def view(request: Any) -> HttpResponse:
        nonlocal inside, most
        inside += 1
        most = max(most, inside)
        await asyncio.sleep(0.02)
        inside -= 1
        return HttpResponse()

    async def ask() -> None:
        for _ in range(each):
            statuses[(await view(RequestFactory().get("/"))).status_code] += 1

    async def main() -> None:
        asking = [asyncio.ensure_future(ask()) for _ in range(12)]
        while not all(task.done() for task in asking):
            await asyncio.sleep(0.03)
            time.sleep(busy)
        await asyncio.gather(*asking)

    outage_changed.connect(note)
    try:
        asyncio.run(main())
    finally:
        outage_changed.disconnect(note)
    assert ([], 4) == (outages, most)
    assert statuses[200] == 12 * each or (waits < BUSY and statuses[200] > 4)
