"""Child processes of tests: `python -m tests.behaviour.child ROLE ARGS`.

ROLE is the name of a function below. The function uses the library, and prints a line for each
step. A child process uses the settings, the server, and the journal of its test.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
import os
import random
import signal
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import redis

from django_redis_sync import Lease, LeaseLost, Lock, Semaphore, Unavailable, single_flight
from tests.support import worker_processes
from tests.support.backends import pool_of

#: The Django settings module of child processes.
SETTINGS = "tests.settings"


class Child:
    """A child process that a test has started. It is killed at the end of the `with` block."""

    module = __name__

    def __init__(self, role: str, *args: object, **environment: str) -> None:
        env = {**os.environ, "DJANGO_SETTINGS_MODULE": SETTINGS, **environment}
        self.process = worker_processes.Process("-m", self.module, role, *args, env=env)

    def __enter__(self) -> Child:
        return self

    def __exit__(self, *error: object) -> None:
        # The child has its own process group, so its forks are killed too.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.communicate()

    def line(self) -> list[str]:
        """Return the words of the next line that the child prints. Raise AssertionError if the
        child has ended instead."""
        return self.process.line().split()

    def send_line(self, text: str = "") -> None:
        """Send a line to the child's stdin. Some roles wait for this before they continue."""
        self.process.stdin.write(text + "\n")
        self.process.stdin.flush()

    def ended(self, seconds: float = 60) -> list[list[str]]:
        """Wait for the child to exit with code 0, and return the words of its remaining lines."""
        out, _ = self.process.communicate(timeout=seconds)
        assert self.process.returncode == 0, out
        return [line.split() for line in out.splitlines()]


def say(*words: object) -> None:
    # A single write, so that lines of several processes don't mix.
    os.write(1, (" ".join(map(str, words)) + "\n").encode())


# Roles


def storm(name: str, limit: int, threads: int, enough: int, seed: int) -> None:
    """Acquire and release a semaphore in `threads` threads, until there were at least `enough`
    grants. Print the number of grants."""
    cycles = [0] * threads

    def work(number: int) -> None:
        chance = random.Random(1000 * seed + number)
        sem = Semaphore(name, limit, timeout=6, renew=True)
        while sum(cycles) < enough:
            wait = chance.choice([None, None, None, 0, 0.05, 1])
            try:
                lease = sem.acquire(blocking_timeout=wait)
            except Unavailable:
                # A call that waits for at most a second also waits only a second for the server.
                # Beside so many threads, the answer may take longer.
                assert wait
                continue
            if lease:
                assert lease.held
                time.sleep(chance.random() / 500)
                sem.release()
                cycles[number] += 1

    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(work, range(threads)))
    say("cycles", sum(cycles))


def hold(name: str, seconds: float, renew: str, mode: str = "sync") -> None:
    """Acquire a lock, and print the fence of the lease. After a line on stdin, print whether the
    lease is still held. `seconds`: lease duration. `renew`: "renew" to renew the lease."""
    lock = Lock(name, timeout=seconds, renew=renew == "renew")

    async def acquire() -> Any:
        return await lock.aacquire()

    lease = lock.acquire() if mode == "sync" else asyncio.run(acquire())
    say("fence", lease.fence)
    sys.stdin.readline()
    say("held", lease.held)


def adopt() -> None:
    """Read a handle from stdin, and adopt its lease. Read a second line, and release the lease."""
    lease = Lease.from_handle(sys.stdin.readline().strip())
    say("fence", lease.fence)
    sys.stdin.readline()
    lease.release()
    say("released")


def fork_holding(name: str) -> None:
    """Fork this process while it holds two leases. During the fork, another thread holds the
    internal lock of the project's connection pool.

    After the fork, both processes use the library at the same time. The child calls methods of the
    parent's leases. All these calls must fail. Then the child holds a permit of its own for 4 s,
    which is longer than the lease duration of 3 s."""
    lock = Lock(name, timeout=3, renew=True)
    sem = Semaphore(f"{name}-more", 2)
    own, pool = sem.acquire(), pool_of("default")
    locked, go = threading.Event(), threading.Event()

    def hold_pool() -> None:
        with pool._lock:
            locked.set()
            go.wait(60)

    def cycles(own_name: str) -> None:
        for _ in range(50):
            with Lock(own_name) as mine:
                if not mine.owned() or mine.name != own_name:
                    say("MIXED UP", own_name)

    with lock as lease:
        threading.Thread(target=hold_pool, daemon=True).start()
        locked.wait(60)
        pid = os.fork()
        go.set()
        if pid == 0:
            calls = (
                lease.release,
                lease.renew,
                lease.detach,
                lease.check,
                lock.release,
                sem.release,
            )
            for number, call in enumerate(calls):
                with contextlib.suppress(LeaseLost):
                    call()
                    say("WORKED", number)
            cycles(f"{name}-child")
            say("held", lease.held, own.held)
            with Semaphore(f"{name}-more", 2, timeout=3, renew=True, blocking=False) as mine:
                say("mine", mine.held)
                time.sleep(4)
                say("mine", mine.held)
        # Both processes leave the `with` block, but only the parent may release the lease.
        else:
            cycles(f"{name}-parent")
            os.waitpid(pid, 0)
            say("parent", lease.held, own.held, lease.owned(), own.owned())
    if pid:
        say("left", lease.held, lock.locked())
        own.release()


def keyed(name: str, key: str) -> None:
    """Acquire the only permit of a key, and let a thread wait for the permit. Release the permit
    after a line on stdin."""
    lease = Semaphore(name, 1, key=key).acquire()

    def wait() -> None:
        if Semaphore(name, 1, key=key).acquire():
            say("in")

    thread = threading.Thread(target=wait, daemon=True)
    thread.start()
    while not Semaphore(name, 1, key=key).status().waiting:
        time.sleep(0.01)
    say("waits")
    if sys.stdin.readline():
        lease.release()
        say("released")
    thread.join(20)


def crowd(name: str, tasks: int) -> None:
    """Start `tasks` tasks that wait for one lock. Each task releases the lock without delay."""

    async def wait() -> None:
        async with Lock(name):
            pass

    async def main() -> None:
        waiting = []
        for number in range(tasks):
            waiting.append(asyncio.ensure_future(wait()))
            if number % 50 == 0:
                await asyncio.sleep(0.02)
        await asyncio.gather(*waiting)

    asyncio.run(main())


def fly(name: str, mode: str, callers: int, seconds: float, ttl: int, timeout: float) -> None:
    """Print "ready". After a line on stdin, call a single_flight function in `callers` threads or
    tasks, again and again with `ttl` 0, until a second line comes. Print the results.

    `seconds`: the max duration of a run. In Redis, the hash NAME-running has the process that runs
    the function, NAME-runs counts runs, and NAME-overlaps the runs that found another run."""
    client = redis.Redis.from_url(os.environ["DJANGO_REDIS_SYNC_TEST_RAW_URL"])
    me, stop, chance = os.getpid(), threading.Event(), random.Random()

    def begin() -> tuple[int, float]:
        client.hset(f"{name}-running", me, 1)
        if client.hlen(f"{name}-running") > 1:
            client.incr(f"{name}-overlaps")
        return client.incr(f"{name}-runs"), chance.uniform(seconds / 5, seconds)

    def end(run: int) -> list[int]:
        client.hdel(f"{name}-running", me)
        return [run, me]

    options: Any = {"ttl": ttl, "timeout": timeout, "ignore": "caller"}

    @single_flight(name, **options)
    def work(caller: int) -> list[int]:
        run, duration = begin()
        time.sleep(duration)
        return end(run)

    @single_flight(name, **options)
    async def awork(caller: int) -> list[int]:
        run, duration = begin()
        await asyncio.sleep(duration)
        return end(run)

    results: list[list[int]] = []

    def calls(caller: int) -> None:
        while True:
            results.append(work(caller))
            if ttl or stop.is_set():
                return

    async def acalls(caller: int) -> None:
        while True:
            results.append(await awork(caller))
            if ttl or stop.is_set():
                return

    async def tasks() -> None:
        await asyncio.gather(*map(acalls, range(callers)))

    say("ready")
    sys.stdin.readline()
    threading.Thread(target=lambda: sys.stdin.readline() and stop.set(), daemon=True).start()
    if mode == "sync":
        with ThreadPoolExecutor(callers) as threads:
            list(threads.map(calls, range(callers)))
    else:
        asyncio.run(tasks())
    say("results", json.dumps(results).replace(" ", ""))


#: The functions of this module by name. `main` calls the function that the argument ROLE names.
ROLES: dict[str, Any] = globals()


def main() -> None:
    import django

    django.setup()

    from tests.support import journal

    journal.install_from_env()
    role, *words = sys.argv[1:]
    ROLES[role](*map(_value, words))


def _value(word: str) -> Any:
    try:
        return json.loads(word)
    except ValueError:
        return math.inf if word == "inf" else word


if __name__ == "__main__":
    main()
