"""An event loop ends at once, and leaves no connection, lease, or waiter behind."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import random
import socket
import sys
import threading
import time
import weakref
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest
import redis
import redis.asyncio
from django.test import override_settings

from django_redis_sync import Lease, Lock, Semaphore, Unavailable
from django_redis_sync.engine.server import async_server_of

from .both import MAX_WAIT, eventually
from .watching import View

pytestmark = pytest.mark.usefixtures("clean_redis")

RUNS, TASKS = 12, 30


class Impatient(Lock):
    _attempt = 0.3


#: Seconds within which a loop ends, also on a busy machine.
BACK = 5.0


@pytest.fixture(autouse=True)
def no_complaints(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """Fail if asyncio logs a pending task that was destroyed, or an exception that was never
    retrieved."""
    yield
    gc.collect()
    logged = [record for record in caplog.get_records("call") if record.name == "asyncio"]
    assert [record.getMessage() for record in logged] == []


def of_loops() -> list[Any]:
    """Return the open async connections of this process."""
    found = [obj for obj in gc.get_objects() if isinstance(obj, redis.asyncio.Connection)]
    return [connection for connection in found if connection.is_connected]


Ends = tuple[Any, Any]


def ends() -> set[Ends]:
    """Return the client and server address of each open async connection.

    Several connections may share a client port."""
    infos = [connection._writer.get_extra_info for connection in of_loops()]
    return {(info("sockname"), info("peername")) for info in infos}


def still_open(mine: set[Ends]) -> int:
    """Return the number of open sockets of this process with these addresses."""
    count = 0
    for obj in gc.get_objects():
        if isinstance(obj, socket.socket) and obj.fileno() >= 0:
            with contextlib.suppress(OSError):
                count += (obj.getsockname(), obj.getpeername()) in mine
    return count


def known(mine: set[Ends], raw: redis.Redis) -> list[str]:
    """Return the client addresses of `mine` that the server still lists."""
    addresses = {f"{host}:{port}" for (host, port), _ in mine}
    return [client["addr"] for client in raw.client_list() if client["addr"] in addresses]


# Loops that are ended


def uv_run(body: Any) -> Any:
    return pytest.importorskip("uvloop").run(body)


RUNNERS = [asyncio.run, uv_run]


async def acquiring(semaphore: Semaphore) -> None:
    lease = await semaphore.aacquire(blocking_timeout=MAX_WAIT)
    assert lease
    await lease.arelease()


async def entering(semaphore: Semaphore) -> None:
    async with semaphore:
        await asyncio.sleep(0)


async def hurried(semaphore: Semaphore) -> None:
    # Not wait_for(), which may swallow a cancellation before Python 3.12.
    with contextlib.suppress(asyncio.TimeoutError):
        async with asyncio.timeout(random.uniform(0.001, 0.02)):  # type: ignore[attr-defined]
            await entering(semaphore)


async def shielded(semaphore: Semaphore) -> None:
    await asyncio.shield(entering(semaphore))


async def scoped(semaphore: Semaphore) -> None:
    import anyio

    with anyio.move_on_after(random.uniform(0.001, 0.02)):
        await entering(semaphore)


async def grouped(semaphore: Semaphore) -> None:
    async with asyncio.TaskGroup() as group:  # type: ignore[attr-defined]
        group.create_task(entering(semaphore))
        group.create_task(acquiring(semaphore))


SCENARIOS = [acquiring, entering, hurried, shielded, scoped, grouped]


async def busy(what: Callable[[Semaphore], Awaitable[None]], number: int) -> None:
    shared, own = Semaphore("shared", 5, blocking_timeout=MAX_WAIT), Lock(f"own-{number}")
    while True:
        await what(random.choice([shared, own]))


def timed_runs(run: Callable[[Any], Any], main: Callable[[], Any], runs: int) -> list[float]:
    """Return the seconds that each run takes after the time that `main` returns."""
    took: list[float] = []

    def all_of_them() -> None:
        for _ in range(runs):
            done = run(main())
            took.append(time.monotonic() - done)

    thread = threading.Thread(target=all_of_them, daemon=True)
    thread.start()
    thread.join(MAX_WAIT + runs)
    assert not thread.is_alive(), f"run {len(took)} did not end"
    return took


@pytest.mark.parametrize("run", RUNNERS, ids=["asyncio", "uvloop"])
@pytest.mark.parametrize("what", SCENARIOS, ids=lambda what: what.__name__)
def test_event_loop_ends_at_once_while_tasks_are_busy(
    run: Any, what: Any, raw: redis.Redis, view: Callable[[str], View]
) -> None:
    if what in (grouped, hurried) and sys.version_info < (3, 11):
        pytest.skip("asyncio has it since Python 3.11")
    if what is scoped:
        pytest.importorskip("anyio")
        if sys.version_info < (3, 11):
            pytest.skip("before Python 3.11, anyio takes the end of the loop for its own timeout")
    if run is uv_run:
        pytest.importorskip("uvloop")

    async def main() -> float:
        tasks = [asyncio.ensure_future(busy(what, number)) for number in range(TASKS)]
        await asyncio.sleep(random.uniform(0.005, 0.05))
        assert not any(task.done() for task in tasks)
        return time.monotonic()

    took = timed_runs(run, main, RUNS)
    assert (RUNS, []) == (len(took), [seconds for seconds in took if seconds > BACK])
    for name in ["shared", *(f"own-{number}" for number in range(TASKS))]:
        mine = view(name)
        eventually(lambda mine=mine: mine.empty)
        assert (0, 0) == (mine.holding, mine.waiting)


def test_event_loop_ends_within_seconds_when_redis_does_not_answer(private, alias) -> None:
    """A background thread sends the releases later."""
    name = alias(private.url)

    async def main() -> float:
        leases = [await Lock(f"x-{i}", using=name).aacquire() for i in range(5)]
        private.pause()
        tasks = [asyncio.ensure_future(lease.arelease()) for lease in leases]
        tasks += [asyncio.ensure_future(Lock("y", using=name).aacquire()) for _ in range(5)]
        await asyncio.sleep(0.05)
        assert not any(task.done() for task in tasks)
        return time.monotonic()

    try:
        (took,) = timed_runs(asyncio.run, main, 1)
        assert took < BACK
    finally:
        private.resume()
    with redis.Redis.from_url(private.url) as client:
        for number in range(5):
            mine = View(client, f"x-{number}")
            eventually(lambda mine=mine: mine.empty)


# Loops that are only closed


async def one_lock(number: int) -> set[Ends]:
    async with Lock("closed", blocking_timeout=MAX_WAIT) as lease:
        lease.check()
        assert not await Lock("closed").aacquire(blocking_timeout=0.02)
    return ends()


def closed_loops(body: Callable[[int], Any], count: int) -> tuple[list[Any], set[Ends]]:
    loops, had = [], set()
    for number in range(count):
        loop = asyncio.new_event_loop()
        had |= loop.run_until_complete(body(number))
        loop.close()
        loops.append(weakref.ref(loop))
    return loops, had


#: asyncio and redis-py warn if a loop is closed while it has tasks and connections.
complains = pytest.mark.filterwarnings(
    "ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning"
)


def collected(body: Callable[[int], Any], count: int) -> tuple[list[Any], set[Ends]]:
    """Run `closed_loops()`, then use another loop and collect garbage."""
    loops, had = closed_loops(body, count)
    asyncio.run(one_lock(count))
    gc.collect()
    return loops, had


@complains
def test_closed_loop_and_its_sockets_are_garbage_collected(
    raw: redis.Redis, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.CRITICAL, "asyncio"):
        loops, had = collected(one_lock, 10)
        assert len(had) >= 10
        eventually(lambda: gc.collect() >= 0 and still_open(had) == 0)
        eventually(lambda: not known(had, raw))
    assert [] == [loop for loop in loops if loop() is not None]


# Settings that change under a loop


def test_changed_settings_close_the_former_connections_of_a_loop(
    raw: redis.Redis, settings
) -> None:
    others = of_loops()  # of a loop that another test closed

    def mine() -> int:
        return sum(connection not in others for connection in of_loops())

    async def main() -> None:
        for _ in range(10):
            async with Lock("changing", blocking_timeout=MAX_WAIT):
                assert mine()
            with override_settings(REDIS_SYNC={**settings.REDIS_SYNC, "TIMEOUT": 20}):
                async with Lock("changing", blocking_timeout=MAX_WAIT):
                    pass
        until, now = time.monotonic() + MAX_WAIT, None
        while now != (0, 0, 1) and time.monotonic() < until:
            await asyncio.sleep(0.01)
            now = (mine(), len(raw.pubsub_channels()), len(asyncio.all_tasks()))
        assert (0, 0, 1) == now

    asyncio.run(main())


def test_waiter_is_granted_after_the_settings_changed(settings, view) -> None:
    """The former connections serve the waiter, and are closed afterwards."""

    async def main() -> None:
        holder = await Lock("outlived").aacquire()
        waiter = asyncio.ensure_future(Lock("outlived", blocking_timeout=MAX_WAIT).aacquire())
        while not view("outlived").waiting:
            await asyncio.sleep(0.005)
        former = async_server_of("default")
        with override_settings(REDIS_SYNC={**settings.REDIS_SYNC, "TIMEOUT": 20}):
            await asyncio.sleep(0.05)
            assert former.retired and former.plans
            await holder.arelease()
            lease = await asyncio.wait_for(waiter, MAX_WAIT)
            assert lease.held and not former.plans
            await lease.arelease()

    asyncio.run(main())
    assert view("outlived").empty


# Leases without a reference

#: Since Python 3.12, asyncio itself leaves the frames of tasks that raised an exception to the
#: garbage collector, with or without a lease.
before_312 = pytest.mark.skipif(sys.version_info >= (3, 12), reason="asyncio keeps the frames")


async def granted_to_a_task(name: str) -> None:
    task = asyncio.ensure_future(Lock(name).aacquire())
    await asyncio.wait([task])


async def granted_as_the_loop_ends(name: str) -> None:
    holder = await Lock(name, thread_local=False).aacquire()
    tasks = [asyncio.ensure_future(Lock(name).aacquire()) for _ in range(3)]
    await asyncio.sleep(0.05)
    await holder.arelease()
    assert not all(task.done() for task in tasks)


async def cancelled_while_held(name: str) -> None:
    async def holding() -> None:
        lease = await Lock(name).aacquire()
        await asyncio.sleep(3600)
        lease.check()

    task = asyncio.ensure_future(holding())
    await asyncio.sleep(0.05)
    assert not task.done()


async def cancelled_in_a_call(name: str) -> None:
    async def holding() -> None:
        lease = await Lock(name).aacquire()
        while True:
            await lease.arenew()

    task = asyncio.ensure_future(holding())
    await asyncio.sleep(0.05)
    assert not task.done()


async def cancelled_in_a_release(name: str) -> None:
    async def holding() -> None:
        kept = await Lock(name).aacquire()
        other = await Lock(f"{name}-2").aacquire()
        released.set()
        await other.arelease()
        kept.check()

    released = asyncio.Event()
    task = asyncio.ensure_future(holding())
    await released.wait()
    task.cancel()
    await asyncio.wait([task])
    assert task.cancelled()


async def lost_by_an_error(name: str) -> None:
    async def holding() -> None:
        lease = await Lock(name).aacquire()
        with contextlib.suppress(ValueError):
            await lease.aextend(-1)
        raise LookupError(lease.name)

    with contextlib.suppress(LookupError):
        await asyncio.gather(holding())


async def shielded_and_left(name: str) -> None:
    with contextlib.suppress(asyncio.TimeoutError):
        await asyncio.wait_for(asyncio.shield(Lock(name).aacquire()), 0.0001)
    await asyncio.sleep(0.05)


@pytest.mark.parametrize(
    "what",
    [
        granted_to_a_task,
        granted_as_the_loop_ends,
        pytest.param(cancelled_while_held, marks=before_312),
        pytest.param(cancelled_in_a_call, marks=before_312),
        cancelled_in_a_release,
        lost_by_an_error,
        shielded_and_left,
    ],
    ids=lambda what: what.__name__,
)
def test_unreferenced_lease_is_freed_without_the_garbage_collector(what: Any) -> None:
    """A lease without a reference must not be renewed. Frames, exceptions, and futures must not
    keep one."""
    name = f"unclaimed-{what.__name__}"
    gc.collect()
    gc.disable()
    try:
        asyncio.run(what(name))
        leases = [obj for obj in gc.get_objects() if isinstance(obj, Lease)]
        assert [] == [lease for lease in leases if lease.name == name]
    finally:
        gc.enable()


def test_failed_call_keeps_no_reference_to_its_lease(private: Any, alias: Any) -> None:
    name = alias(private.url)

    async def main() -> None:
        async def holding() -> None:
            lease = await Impatient("failing", using=name).aacquire()
            private.kill()
            await lease.arenew()

        with contextlib.suppress(Unavailable):
            await holding()

    gc.collect()
    gc.disable()
    try:
        asyncio.run(main())
        leases = [obj for obj in gc.get_objects() if isinstance(obj, Lease)]
        assert [] == [lease for lease in leases if lease.name == "failing"]
    finally:
        gc.enable()
