"""An event loop ends without delay. It leaves no connection, lease, or waiter behind."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import random
import sys
import threading
import time
import warnings
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import redis
import redis.asyncio
from django.test import override_settings

from django_redis_sync import Lease, Lock, Semaphore, Unavailable

from .both import MAX_WAIT, Async, eventually, queued, until
from .watching import living, shown

pytestmark = pytest.mark.usefixtures("clean_redis")

RUNS, TASKS = 40, 30
#: Max seconds that an event loop takes to end, even on a busy machine.
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
    return [one for one in living(redis.asyncio.Connection) if one.is_connected]


def addresses() -> set[str]:
    """Return the client address of each open async connection."""
    names = [connection._writer.get_extra_info("sockname") for connection in of_loops()]
    return {f"{host}:{port}" for host, port in names}


async def acquiring(semaphore: Semaphore) -> None:
    lease = await semaphore.aacquire(blocking_timeout=MAX_WAIT)
    assert lease
    await lease.arelease()


async def entering(semaphore: Semaphore) -> None:
    async with semaphore:
        await asyncio.sleep(0)


async def hurried(semaphore: Semaphore) -> None:
    # Don't use wait_for(). Before Python 3.12, it may swallow a cancellation.
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


WAYS: list[Any] = [acquiring, entering, shielded]
if sys.version_info >= (3, 11):
    # `hurried` and `grouped` need functions of asyncio that are new in Python 3.11. `scoped` uses
    # anyio, which mistakes the end of the event loop for a timeout on earlier versions of Python.
    WAYS += [hurried, scoped, grouped]


async def busy(number: int) -> None:
    shared, own = Semaphore("shared", 5, blocking_timeout=MAX_WAIT), Lock(f"own-{number}")
    while True:
        await random.choice(WAYS)(random.choice([shared, own]))


def end_in_time(run: Callable[[Any], Any], main: Callable[[], Any], runs: int = 1) -> None:
    """Call `run(main())` `runs` times. Assert that each call ends within BACK seconds after `main`
    has returned. `main`: a coroutine function that returns the current time when it ends."""
    took: list[float] = []

    def all_of_them() -> None:
        for _ in range(runs):
            done = run(main())
            took.append(time.monotonic() - done)

    thread = threading.Thread(target=all_of_them, daemon=True)
    thread.start()
    thread.join(MAX_WAIT + runs)
    assert not thread.is_alive(), f"run {len(took)} did not end"
    assert (runs, []) == (len(took), [seconds for seconds in took if seconds > BACK])


@pytest.mark.parametrize("loops", ["asyncio", "uvloop"])
def test_event_loop_ends_without_delay_while_tasks_are_busy(loops: str, view: Any) -> None:
    runner = pytest.importorskip(loops)

    async def main() -> float:
        tasks = [asyncio.ensure_future(busy(number)) for number in range(TASKS)]
        await asyncio.sleep(random.uniform(0.005, 0.05))
        assert not any(task.done() for task in tasks)
        return time.monotonic()

    end_in_time(runner.run, main, RUNS)
    for name in ["shared", *(f"own-{number}" for number in range(TASKS))]:
        eventually(lambda name=name: view(name).empty)


def test_event_loop_ends_within_seconds_when_redis_does_not_answer(bench) -> None:
    """A background thread sends the releases when Redis answers again."""

    async def main() -> float:
        leases = [await bench.lock(f"x-{i}").aacquire() for i in range(5)]
        bench.server.pause()
        tasks = [asyncio.ensure_future(lease.arelease()) for lease in leases]
        tasks += [asyncio.ensure_future(bench.lock("y").aacquire()) for _ in range(5)]
        await asyncio.sleep(0.05)
        assert not any(task.done() for task in tasks)
        return time.monotonic()

    try:
        end_in_time(asyncio.run, main)
    finally:
        bench.server.resume()
    for name in ["y", *(f"x-{number}" for number in range(5))]:
        eventually(lambda name=name: bench.view(name).empty)


async def one_lock() -> set[str]:
    async with Lock("closed", blocking_timeout=MAX_WAIT) as lease:
        lease.check()
        assert not await Lock("closed").aacquire(blocking_timeout=0.02)
    return addresses()


def close(body: Any) -> tuple[Any, set[str]]:
    loop = asyncio.new_event_loop()
    had = loop.run_until_complete(body)
    loop.close()
    return weakref.ref(loop), had


def end(body: Any) -> tuple[Any, set[str]]:
    return lambda: None, asyncio.run(body)


#: asyncio and redis-py warn if an event loop is closed while it has tasks and connections.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("finish", [close, end], ids=lambda finish: finish.__name__)
def test_ended_or_closed_event_loop_leaves_no_connection(raw, caplog, finish: Any) -> None:
    seen: list[type[Warning]] = []  # without the warnings, which keep transports and their loops
    with caplog.at_level(logging.CRITICAL, "asyncio"), warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.showwarning = lambda _, category, *where: seen.append(category)
        loops, had = zip(*[finish(one_lock()) for _ in range(10)], strict=True)
        if finish is close:  # a new event loop frees the resources of closed ones
            asyncio.run(one_lock())
        gc.collect()
        mine = set().union(*had)
        assert len(mine) >= 10
        eventually(lambda: not mine & {client["addr"] for client in raw.client_list()})
    assert [] == [loop for loop in loops if loop() is not None]
    assert finish is close or not [kind for kind in seen if issubclass(kind, ResourceWarning)]


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_event_loop_that_is_closed_after_its_work_logs_no_pending_task(caplog) -> None:
    """As many programs do: `loop.run_until_complete(work())`, and then `loop.close()`."""
    for _ in range(3):
        close(one_lock())
    asyncio.run(one_lock())  # a new event loop frees the resources of closed ones
    gc.collect()
    logged = [one for one in caplog.messages if "destroyed" in one]
    assert [] == logged, "asyncio logs that a task of the library was pending"


def test_connections_of_old_settings_close_only_after_their_waiters_are_granted(
    raw: redis.Redis, settings: Any, view: Any
) -> None:
    """The connections of the former settings serve the waiter until it is granted. Then they are
    closed."""
    others = of_loops()  # open connections of an event loop that another test closed

    def mine() -> int:
        return sum(connection not in others for connection in of_loops())

    async def main() -> None:
        for _ in range(5):
            holder = await Lock("outlived").aacquire()
            waiter = await queued(Async(), Lock("outlived"), view("outlived"))
            assert mine()
            with override_settings(REDIS_SYNC={**settings.REDIS_SYNC, "TIMEOUT": 20}):
                async with Lock("changed"):
                    await holder.arelease()
                lease = await asyncio.wait_for(waiter, MAX_WAIT)
                assert lease.held
                await lease.arelease()
        await until(Async(), lambda: (mine(), len(raw.pubsub_channels())) == (0, 0))
        await until(Async(), lambda: len(asyncio.all_tasks()) == 1)

    asyncio.run(main())
    assert view("outlived").empty and "outlived" in shown()


# A lease without a reference is freed, so that it isn't renewed


async def renews(lease: Lease) -> None:
    while True:
        await lease.arenew()


async def fails(lease: Lease) -> None:
    with contextlib.suppress(ValueError):
        await lease.aextend(-1)
    raise LookupError(lease.name)


async def releases_another(lease: Lease) -> None:
    other = await Lock(f"{lease.name}-2").aacquire()
    asyncio.get_running_loop().call_soon(asyncio.current_task().cancel)  # type: ignore[union-attr]
    await other.arelease()


async def in_a_task(lock: Lock, then: Any) -> None:
    """Start a task that acquires a lease and passes it to `then`. The end of the event loop
    cancels the task if it is still running."""

    async def holding() -> None:
        await then(await lock.aacquire())

    task = asyncio.ensure_future(holding())
    await asyncio.wait([task], timeout=0.05 if then is renews else MAX_WAIT)
    assert task.done() == (then is not renews)
    if task.done() and not task.cancelled():
        assert isinstance(task.exception(), (LookupError, Unavailable, type(None)))


async def as_the_loop_ends(lock: Lock) -> None:
    holder = await Lock(lock.name, thread_local=False).aacquire()
    tasks = [asyncio.ensure_future(Lock(lock.name).aacquire()) for _ in range(3)]
    await asyncio.sleep(0.05)
    await holder.arelease()
    assert not all(task.done() for task in tasks)


async def shielded_and_left(lock: Lock) -> None:
    """The lease is granted to a task that waits no longer. It is freed with the task."""

    async def leaving() -> None:
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(asyncio.shield(lock.aacquire()), 0.0001)
        await asyncio.sleep(0.05)

    # Not the first task: frames of redis-py's exceptions refer to it, from Python 3.12 on.
    await asyncio.ensure_future(leaving())


#: Skip a test on Python 3.12 and later. There, if a task raises an exception, asyncio leaves some
#: frames of the task to the garbage collector, with or without a lease.
before_312 = pytest.mark.skipif(sys.version_info >= (3, 12), reason="asyncio keeps the frames")


@pytest.mark.parametrize(
    "how",
    [
        pytest.param((in_a_task, renews), marks=before_312),
        (in_a_task, fails),
        (in_a_task, releases_another),
        (in_a_task, "renews without a server"),
        (as_the_loop_ends,),
        (shielded_and_left,),
    ],
    ids=lambda how: getattr(how[-1], "__name__", how[-1]),
)
def test_unreferenced_lease_is_freed_without_the_garbage_collector(how: Any, bench: Any) -> None:
    """A lease without a reference must not be renewed. Frames, exceptions, and futures must not
    keep a reference to it."""

    async def without_a_server(lease: Lease) -> None:
        bench.server.kill()
        await lease.arenew()

    main, *then = how
    lock = Lock("unclaimed")
    if then == ["renews without a server"]:
        lock, then = bench.lock("unclaimed"), [without_a_server]
    gc.collect()
    gc.disable()
    try:
        asyncio.run(main(lock, *then))
        assert [] == [lease for lease in living(Lease) if lease.name == "unclaimed"]
    finally:
        gc.enable()
