"""Many callers at once. A journal records all scripts, and a checker verifies the limit, the order,
and the cleanup."""

from __future__ import annotations

import asyncio
import contextlib
import random
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from django_redis_sync import LeaseLost, Lock, Semaphore, Unavailable
from tests.support.journal import journalling

from .both import Async, Sync, both, eventually, until
from .child import Child
from .watching import Standstills, counted

pytestmark = [pytest.mark.usefixtures("clean_redis"), pytest.mark.promise(1, 2, 11)]

#: Time constants of the scripts in ms, shorter than usual.
#: GRACE: keys expire between GRACE and 2 * GRACE after the last lease or waiter has ended.
#: TOMBSTONE_TTL: lifetime of a tombstone, longer than any request is late on a busy machine.
SHORT = {"GRACE": 200, "TOMBSTONE_TTL": 30_000}
#: Lease options. The lease is longer than delays of the renewal thread on a busy machine.
LEASE = {"timeout": 6, "renew": True}


@pytest.fixture
def checked(redis_url: str, view: Any) -> Iterator[None]:
    """Record all scripts in a journal. After the test, check the journal, and assert that all keys
    of the name `x` expire soon."""
    with journalling(redis_url, constants=SHORT) as journal:
        yield
        mine = view("x")
        eventually(lambda: mine.empty)
        journal.check()
        most = SHORT["TOMBSTONE_TTL"] + 2 * SHORT["GRACE"]  # longer than LEASE and ASLEEP
        left = {key: mine.client.pttl(key) for key in mine.left()}
        assert {key: ms for key, ms in left.items() if not -2 <= ms <= most or ms == -1} == {}


def test_200_threads_in_4_processes_never_exceed_the_limit(checked) -> None:
    with contextlib.ExitStack() as stack:
        storms = [stack.enter_context(Child("storm", "x", 7, 50, 60, n)) for n in range(4)]
        for storm in storms:
            ((_, cycles),) = storm.ended()
            assert int(cycles) >= 60


@pytest.mark.parametrize(
    ("tasks", "threads", "limit", "permits"), [(500, 0, 9, [1]), (20, 20, 5, [1, 1, 2, 3, 5])]
)
def test_threads_and_tasks_wait_in_one_queue(
    checked, redis_url, tasks, threads, limit, permits
) -> None:
    """All threads and tasks use one semaphore object."""
    inside, most, endless, cycles, failed = set[Any](), 0, 0, 0, 0
    sem = Semaphore("x", limit, **LEASE)

    async def work(io: Any, number: int) -> None:
        nonlocal most, endless, cycles, failed
        chance = random.Random(number)
        for _ in range(6):
            wait, weight = chance.choice([None, None, 0, 2]), chance.choice(permits)
            endless += wait is None
            try:
                lease = await io.do(sem, "acquire", blocking_timeout=wait, permits=weight)
                assert lease or wait is not None
                if lease:
                    cycles += 1
                    inside.add(lease)
                    # A lease that is over does not count, even if its holder does not yet know it.
                    most = max(most, sum(one.permits for one in list(inside) if one.held))
                    await io.sleep(chance.random() / 500)
                    inside.remove(lease)
                    await io.do(sem, "release")
            except (Unavailable, LeaseLost) as error:
                # A wait of 2 seconds ends in time, even if the server of a busy machine is silent.
                failed += wait != 2 or isinstance(error, LeaseLost)

    async def main() -> None:
        await asyncio.gather(*[work(Async(), number) for number in range(tasks)])

    with ThreadPoolExecutor(threads + 1) as pool, Standstills(redis_url) as standstills:
        each = [pool.submit(Sync().run, work(Sync(), tasks + n)) for n in range(threads)]
        for future in [pool.submit(asyncio.run, main()), *each]:
            future.result()
    # About half of the calls wait without a time limit (`endless`). Each such call is granted.
    assert cycles + failed >= endless > 2 * (tasks + threads)
    assert 1 <= most <= limit
    # Unless the machine stood still for longer than a server may be silent, no call fails.
    stood = f"{failed} calls failed, but nothing stood still for over {standstills.longest:.2f} s"
    assert failed == 0 or standstills.longest > 1, stood


@pytest.mark.parametrize("crowd", [4, 16, 64])
@both
async def test_waiters_send_no_polling_commands(io, raw, crowd: int) -> None:
    """An acquire and its release send at most three commands, however many callers wait."""
    turns = 6
    gate = threading.Barrier(crowd) if repr(io) == "sync" else None

    async def worker() -> None:
        lock = Lock("x")
        if gate:
            gate.wait(30)
        for _ in range(turns):
            await io.do(lock, "acquire")
            await io.do(lock, "release")

    async with io.entered(Lock("warm")):  # load the scripts, and subscribe
        pass
    with counted(raw) as seen:
        await io.gather(*[worker() for _ in range(crowd)])
    # A waiter that waits for about a second sends its request again. Allow for these requests.
    beats = 2 * crowd * max(0.0, seen.seconds - 0.8)
    connecting = 2 * crowd + 8
    assert seen.by_clients <= 3 * crowd * turns + beats + connecting
    assert seen["publish"] <= crowd * turns


@both
async def test_release_wakes_one_waiter_per_freed_permit(io, raw, view, figure) -> None:
    # 500 threads would slow down this process, and the test would measure that.
    crowd = 60 if repr(io) == "sync" else 500
    large = await io.do(Semaphore("herd", 5), "acquire", permits=5)
    got: list[Any] = []

    async def waiter() -> None:
        lease = await io.do(Semaphore("herd", 5), "acquire", blocking_timeout=20)
        if lease:
            got.append(lease)
            if len(got) > 5:
                await io.do(lease, "release")

    waiters = [io.start(waiter()) for _ in range(crowd)]
    await until(io, lambda: view("herd").waiting == crowd)
    with counted(raw) as seen:
        await io.do(large, "release")
        await until(io, lambda: len(got) >= 5)
    assert len(got) == 5 == seen["rpush"]
    assert repr(io) == "sync" or seen["publish"] == 5
    figure(said=f"{seen['rpush']} of {crowd} woken for 5 permits")
    for lease in got[:5]:
        await io.do(lease, "release")
    for started in waiters:
        await io.result(started)
    assert crowd == len(got)
    assert view("herd").empty
