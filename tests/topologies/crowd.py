"""Threads and tasks that take turns on some names, while a test breaks servers under them."""

from __future__ import annotations

import asyncio
import random
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import Any

from django_redis_sync import LeaseLost, NotAcquired, Semaphore, Unavailable


class Crowd:
    """Works for the length of the `with` block; every worker waits for as long as it takes.

    Invariants looked at in this process, with its own clock: `over` counts the moments at which
    more leases of a name were believed in than its limit. `lease`: their seconds, long where none
    may be lost.
    """

    def __init__(
        self,
        alias: str | Sequence[str],
        names: Sequence[str],
        limit: int,
        *,
        threads: int = 4,
        tasks: int = 8,
        lease: float = 3,
    ) -> None:
        self.alias, self.names, self.limit, self.lease = alias, names, limit, lease
        self.grants: dict[str, list[float]] = defaultdict(list)
        self.errors: Counter[str] = Counter()
        self.said: list[str] = []
        self.over = 0
        self._inside: dict[str, list[Any]] = defaultdict(list)
        self._lock, self._stop = threading.Lock(), threading.Event()
        work = [threading.Thread(target=self._thread, args=(n,)) for n in range(threads)]
        self._threads = [*work, threading.Thread(target=lambda: asyncio.run(self._loop(tasks)))]

    def __enter__(self) -> Crowd:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(60)
            assert not thread.is_alive(), "a worker hangs"

    def since(self, moment: float) -> dict[str, float]:
        """For each name, seconds from `moment` to its first grant after that."""
        firsts = {}
        for name in self.names:
            later = [at - moment for at in self.grants[name] if at > moment]
            if later:
                firsts[name] = min(later)
        return firsts

    def excused(self, believed: list[Any]) -> bool:
        """Whether the page on guarantees allows for so many holders."""
        return False

    def _semaphore(self, name: str) -> Semaphore:
        return Semaphore(name, self.limit, using=self.alias, timeout=self.lease, renew=True)

    def _got(self, name: str, lease: Any) -> None:
        with self._lock:
            self.grants[name].append(time.monotonic())
            self._inside[name].append(lease)
            believed = [one for one in self._inside[name] if one.held]
            self.over += len(believed) > self.limit and not self.excused(believed)

    def _left(self, name: str, lease: Any) -> None:
        with self._lock:
            self._inside[name].remove(lease)

    def _failed(self, error: Exception) -> None:
        with self._lock:
            self.errors[type(error).__name__] += 1
            self.said.append(f"{type(error).__name__}: {error}")

    def _thread(self, number: int) -> None:
        chance = random.Random(number)
        while not self._stop.is_set():
            name = chance.choice(self.names)
            try:
                lease = self._semaphore(name).acquire()
                self._got(name, lease)
                time.sleep(chance.random() / 100)
                self._left(name, lease)
                lease.release()
            except (Unavailable, LeaseLost, NotAcquired) as error:
                self._failed(error)
                time.sleep(0.05)

    async def _loop(self, tasks: int) -> None:
        await asyncio.gather(*[self._task(100 + number) for number in range(tasks)])

    async def _task(self, number: int) -> None:
        chance = random.Random(number)
        while not self._stop.is_set():
            name = chance.choice(self.names)
            try:
                lease = await self._semaphore(name).aacquire()
                self._got(name, lease)
                await asyncio.sleep(chance.random() / 100)
                self._left(name, lease)
                await lease.arelease()
            except (Unavailable, LeaseLost, NotAcquired) as error:
                self._failed(error)
                await asyncio.sleep(0.05)
