"""Threads and tasks that acquire and release permits while a test breaks servers."""

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
    """Workers that run during the `with` block. Each acquire waits without limit.

    `over` counts the grants after which this process treated more leases of a name as held than
    its limit. `lease`: lease duration in seconds, long if no lease may be lost. `shares`: shares
    for which workers acquire permits, each with a limit of 1.
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
        shares: Sequence[str] = (),
    ) -> None:
        self.alias, self.names, self.limit, self.lease = alias, names, limit, lease
        self.shares = shares
        self.grants: dict[str, list[float]] = defaultdict(list)
        self.errors: Counter[str] = Counter()
        self.messages: list[str] = []
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
        """Return the seconds from `moment` to the next grant of each name."""
        firsts = {}
        for name in self.names:
            later = [at - moment for at in self.grants[name] if at > moment]
            if later:
                firsts[name] = min(later)
        return firsts

    def excused(self, held: list[Any]) -> bool:
        """Return True if the guarantees allow these leases to be held at the same time."""
        return False

    def _semaphore(self, name: str, share: str | None) -> Semaphore:
        of_share = {"share": share, "share_limit": 1} if share else {}
        return Semaphore(
            name, self.limit, using=self.alias, timeout=self.lease, renew=True, **of_share
        )

    def _choice(self, chance: random.Random) -> tuple[str, str | None]:
        return chance.choice(self.names), chance.choice(self.shares) if self.shares else None

    def _got(self, name: str, share: str | None, lease: Any) -> None:
        with self._lock:
            self.grants[name].append(time.monotonic())
            self._inside[name].append((share, lease))
            held = [(of, lease) for of, lease in self._inside[name] if lease.held]
            leases = [lease for _, lease in held]
            self.over += len(leases) > self.limit and not self.excused(leases)
            self.over += share is not None and sum(of == share for of, _ in held) > 1

    def _left(self, name: str, share: str | None, lease: Any) -> None:
        with self._lock:
            self._inside[name].remove((share, lease))

    def _failed(self, error: Exception) -> None:
        with self._lock:
            self.errors[type(error).__name__] += 1
            self.messages.append(f"{type(error).__name__}: {error}")

    def _thread(self, number: int) -> None:
        chance = random.Random(number)
        while not self._stop.is_set():
            name, share = self._choice(chance)
            try:
                lease = self._semaphore(name, share).acquire()
                self._got(name, share, lease)
                time.sleep(chance.random() / 100)
                self._left(name, share, lease)
                lease.release()
            except (Unavailable, LeaseLost, NotAcquired) as error:
                self._failed(error)
                time.sleep(0.05)

    async def _loop(self, tasks: int) -> None:
        await asyncio.gather(*[self._task(100 + number) for number in range(tasks)])

    async def _task(self, number: int) -> None:
        chance = random.Random(number)
        while not self._stop.is_set():
            name, share = self._choice(chance)
            try:
                lease = await self._semaphore(name, share).aacquire()
                self._got(name, share, lease)
                await asyncio.sleep(chance.random() / 100)
                self._left(name, share, lease)
                await lease.arelease()
            except (Unavailable, LeaseLost, NotAcquired) as error:
                self._failed(error)
                await asyncio.sleep(0.05)
