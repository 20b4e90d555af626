"""Many callers at once. A journal of all scripts checks the limit, the order, and the cleanup."""

from __future__ import annotations

import asyncio
import random
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from django_redis_sync import Lock, Semaphore
from django_redis_sync.protocol.scripts import CONSTANTS
from tests.support.journal import journalling

from .both import both, eventually
from .child import Child
from .watching import View, counted

pytestmark = [pytest.mark.usefixtures("clean_redis"), pytest.mark.promise(1, 2, 11)]

#: Keys outlive the last lease or waiter by one to two GRACE. A tombstone outlives an undone request
#: by TOMBSTONE_TTL. Both are shorter here, so that the test sees the keys expire.
SHORT = {"GRACE": 200, "TOMBSTONE_TTL": CONSTANTS["ASLEEP"]}
#: Longer than a busy machine delays the renewal thread.
LEASE = {"timeout": 6, "renew": True}


def check_that_all_is_over(journal: Any, view: View) -> None:
    eventually(lambda: view.empty)
    journal.check()
    most = max(LEASE["timeout"] * 1000, CONSTANTS["ASLEEP"]) + 2 * SHORT["GRACE"]
    left = {key: view.client.pttl(key) for key in view.left()}
    assert {key: ms for key, ms in left.items() if not -2 <= ms <= most or ms == -1} == {}
    eventually(lambda: not view.left(), most / 1000 + 2)


def test_200_threads_in_4_processes_never_exceed_the_limit(redis_url, view) -> None:
    with journalling(redis_url, constants=SHORT) as journal:
        with Child("storm", "processes", 7, 4, 50, 60) as storm:
            cycles = [int(words[1]) for words in storm.ended()]
        assert len(cycles) == 4
        assert min(cycles) >= 60
        check_that_all_is_over(journal, view("processes"))


def test_500_tasks_on_one_loop_never_exceed_the_limit(redis_url, view) -> None:
    inside = [0, 0]
    endless = 0

    async def task(number: int) -> int:
        nonlocal endless
        chance, cycles = random.Random(number), 0
        sem = Semaphore("tasks", 9, **LEASE)
        for _ in range(4):
            wait = chance.choice([None, None, 0, 2])
            endless += wait is None
            lease = await sem.aacquire(blocking_timeout=wait)
            assert lease or wait is not None
            if lease:
                inside[0] += 1
                inside[1] = max(inside)
                await asyncio.sleep(chance.random() / 500)
                inside[0] -= 1
                await sem.arelease()
                cycles += 1
        return cycles

    async def main() -> list[int]:
        return await asyncio.gather(*[task(number) for number in range(500)])

    with journalling(redis_url, constants=SHORT) as journal:
        cycles = asyncio.run(main())
        # About half of the calls wait without limit, so each of them is granted.
        assert sum(cycles) >= endless > 800
        assert 1 <= inside[1] <= 9
        check_that_all_is_over(journal, view("tasks"))


def test_threads_and_tasks_wait_in_one_queue(redis_url, view) -> None:
    """Sync and async callers of one name, with one to five permits each."""

    def thread(number: int) -> None:
        chance = random.Random(number)
        for _ in range(10):
            permits = chance.choice([1, 1, 2, 5])
            lease = Semaphore("mixed", 5, **LEASE, thread_local=False).acquire(permits=permits)
            time.sleep(chance.random() / 1000)
            lease.release()

    async def task(number: int) -> None:
        chance = random.Random(number)
        for _ in range(10):
            lease = await Semaphore("mixed", 5, **LEASE).aacquire(
                permits=chance.choice([1, 1, 3, 5])
            )
            await asyncio.sleep(chance.random() / 1000)
            await lease.arelease()

    async def tasks() -> None:
        await asyncio.gather(*[task(100 + n) for n in range(20)])

    with journalling(redis_url, constants=SHORT) as journal:
        with ThreadPoolExecutor(21) as pool:
            done = [pool.submit(thread, n) for n in range(20)] + [pool.submit(asyncio.run, tasks())]
            for future in done:
                future.result()
        check_that_all_is_over(journal, view("mixed"))


@pytest.mark.parametrize("crowd", [4, 16, 64])
@both
async def test_waiters_send_no_polling_commands(io, raw, crowd: int) -> None:
    """With any number of waiters, clients send three commands per acquire and release."""
    turns = 6
    gate = threading.Barrier(crowd) if repr(io) == "sync" else None

    async def worker() -> None:
        lock = Lock(f"crowd-{crowd}")
        if gate:
            gate.wait(30)
        for _ in range(turns):
            await io.do(lock, "acquire")
            await io.do(lock, "release")

    async with io.entered(Lock("warm")):  # load the scripts, and subscribe
        pass
    with counted(raw) as seen:
        await io.gather(*[worker() for _ in range(crowd)])
    # A waiter sends its request again after a second, which happens on a busy machine.
    beats = 2 * crowd * max(0.0, seen.seconds - 0.8)
    connecting = 2 * crowd + 8
    assert seen.by_clients <= 3 * crowd * turns + beats + connecting
    assert seen["publish"] <= crowd * turns


@both
async def test_release_wakes_one_waiter_per_freed_permit(io, raw, view) -> None:
    # With 500 threads, the test would measure the threads.
    crowd = 60 if repr(io) == "sync" else 500
    sem, name = Semaphore("herd", 5), view("herd")
    large = await io.do(sem, "acquire", permits=5)
    got: list[Any] = []

    async def waiter() -> None:
        lease = await io.do(Semaphore("herd", 5), "acquire", blocking_timeout=20)
        if lease:
            got.append(lease)
            if len(got) > 5:
                await io.do(lease, "release")

    waiters = [io.start(waiter()) for _ in range(crowd)]
    while name.waiting < crowd:
        await io.sleep(0.01)
    with counted(raw) as seen:
        await io.do(large, "release")
        while len(got) < 5:
            await io.sleep(0.005)
    assert len(got) == 5
    if repr(io) == "async":
        assert seen["publish"] == 5
    assert seen["rpush"] == 5
    for lease in got[:5]:
        await io.do(lease, "release")
    for started in waiters:
        await io.result(started)
    assert crowd == len(got)
    assert name.empty
