"""A busy process reads replies late, but must not report a healthy Redis as down."""

from __future__ import annotations

import asyncio
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from django.http import HttpResponse
from django.test import RequestFactory

from django_redis_sync import Lock, semaphore_required
from django_redis_sync.limits.breaker import breaker
from django_redis_sync.signals import outage_changed
from tests.support import worker_processes

pytestmark = pytest.mark.usefixtures("clean_redis")

#: Seconds that one attempt may take.
ATTEMPT = 0.3
#: Seconds for which other code blocks the event loop or holds the GIL.
BUSY = 0.7


class Impatient(Lock):
    _attempt = ATTEMPT


async def acquire_and_release(name: str, times: int) -> None:
    for _ in range(times):
        lease = await Impatient(name).aacquire(blocking_timeout=20)
        assert lease
        await lease.arelease()


def test_blocked_event_loop_reads_the_replies_that_arrived_meanwhile() -> None:
    async def main() -> None:
        await acquire_and_release("warm", 1)
        tasks = [asyncio.ensure_future(acquire_and_release(f"busy-{i}", 3)) for i in range(20)]
        while not all(task.done() for task in tasks):
            time.sleep(BUSY)  # a sync call in async code
            await asyncio.sleep(0.001)
            await asyncio.sleep(0.001)
        for task in tasks:
            task.result()

    asyncio.run(main())


def test_event_loop_may_be_blocked_while_it_connects() -> None:
    async def main() -> None:
        task = asyncio.ensure_future(acquire_and_release("connecting", 1))
        for _ in range(3):
            await asyncio.sleep(0)
            time.sleep(BUSY)
        await task

    for _ in range(2):
        asyncio.run(main())


def hog(until: threading.Event) -> None:
    """Hold the GIL for BUSY seconds at a time, as a long call in C does."""
    count = 2_000_000
    while not until.is_set():
        began = time.perf_counter()
        sum(range(count))
        # Adapt to the current speed of the machine.
        count = max(10_000, int(count * BUSY / max(1e-3, time.perf_counter() - began)))
        time.sleep(0.001)


def test_threads_waiting_for_the_gil_read_the_replies_that_arrived_meanwhile() -> None:
    def work(number: int) -> None:
        for _ in range(3):
            lease = Impatient(f"thread-{number}").acquire(blocking_timeout=20)
            assert lease
            lease.release()

    over = threading.Event()
    hogging = threading.Thread(target=hog, args=(over,), daemon=True)
    hogging.start()
    try:
        with ThreadPoolExecutor(4) as threads:
            list(threads.map(work, range(4)))
    finally:
        over.set()
        hogging.join()


@pytest.fixture
def outages() -> Any:
    changes: list[bool] = []

    def note(down: bool, **_: Any) -> None:
        changes.append(down)

    outage_changed.connect(note)
    yield changes
    outage_changed.disconnect(note)


def test_busy_worker_does_not_report_an_outage(outages: list[bool]) -> None:
    inside, most = 0, 0

    @semaphore_required("four", limit=4, blocking_timeout=20, on_outage="local")
    async def view(request: Any) -> HttpResponse:
        nonlocal inside, most
        inside += 1
        most = max(most, inside)
        time.sleep(0.1)
        await asyncio.sleep(0.01)
        inside -= 1
        return HttpResponse()

    async def main() -> list[int]:
        requests = [view(RequestFactory().get("/")) for _ in range(60)]
        return [response.status_code for response in await asyncio.gather(*requests)]

    assert [200] * 60 == asyncio.run(main())
    assert ([], False, 4) == (outages, breaker("default").down, most)


PROCESS = """
import asyncio, os, sys, time
import django
django.setup()
import redis
from django.http import HttpResponse
from django.test import RequestFactory
from django_redis_sync import semaphore_required

witness = redis.Redis.from_url(os.environ["DJANGO_REDIS_SYNC_TEST_RAW_URL"])
busy, until = float(sys.argv[1]), time.monotonic() + float(sys.argv[2])

@semaphore_required("shared-four", limit=4, blocking_timeout=0.2, on_outage="local")
async def view(request):
    inside = witness.incr("busy:inside")
    witness.zadd("busy:most", {"most": inside}, gt=True)
    await asyncio.sleep(0.02)
    witness.decr("busy:inside")
    return HttpResponse()

async def asking(got):
    while time.monotonic() < until:
        got.append((await view(RequestFactory().get("/"))).status_code)

async def main():
    got = []
    tasks = [asyncio.ensure_future(asking(got)) for _ in range(12)]
    while not all(task.done() for task in tasks):
        await asyncio.sleep(0.15)
        time.sleep(busy)
    print(got.count(200))

asyncio.run(main())
"""


def test_busy_processes_never_exceed_the_limit(raw: Any) -> None:
    """The views themselves count the concurrent requests in Redis."""
    workers = [worker_processes.Process("-c", PROCESS, BUSY, 4) for _ in range(2)]
    served = [int(worker.communicate(timeout=60)[0]) for worker in workers]
    assert all(served)
    assert 4 >= int(raw.zscore("busy:most", "most"))
