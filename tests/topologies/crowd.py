"""Threads and tasks that acquire and release permits while a test breaks servers."""

from __future__ import annotations

import asyncio
import random
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Sequence
from functools import partial
from typing import Any

from django_redis_sync import LeaseLost, NotAcquired, Semaphore, Unavailable
from tests.behaviour.both import Async, Sync


class Crowd:
    """Threads and tasks that acquire and release permits during the `with` block. Each acquire
    waits without a time limit.

    `lease`: lease duration in seconds. Make it long if no lease may be lost. `shares`: the shares
    of the requests. Each share has a limit of 1. `over`: number of times that a grant exceeded a
    limit: this process then treated more leases as held than the limit of the name or of the share.
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
        self.names, self.limit, self.shares = names, limit, shares
        self.options = {"using": alias, "timeout": lease, "renew": True}
        self.grants: dict[str, list[float]] = defaultdict(list)
        self.errors: Counter[str] = Counter()
        self.messages: list[str] = []
        self.over = 0
        self.inside: dict[str, list[Any]] = defaultdict(list)
        self.lock, self.stop = threading.Lock(), threading.Event()
        works = [partial(Sync().run, self.work(Sync(), n)) for n in range(threads)]
        works.append(partial(asyncio.run, self.tasks(tasks)))
        self.threads = [threading.Thread(target=work) for work in works]

    def __enter__(self) -> Crowd:
        for thread in self.threads:
            thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.stop.set()
        for thread in self.threads:
            thread.join(60)
            assert not thread.is_alive(), "a worker hangs"

    def since(self, moment: float) -> dict[str, float]:
        """Return the seconds from `moment` to the next grant of each name. Omit names without a
        later grant."""
        grants = {name: [at - moment for at in self.grants[name]] for name in self.names}
        later = {name: [after for after in some if after > 0] for name, some in grants.items()}
        return {name: min(some) for name, some in later.items() if some}

    def excused(self, held: list[Any]) -> bool:
        """Return True if it is no error that the leases `held` exceed the limit. Subclasses may
        override this method."""
        return False

    def got(self, name: str, share: str | None, lease: Any) -> None:
        with self.lock:
            self.grants[name].append(time.monotonic())
            self.inside[name].append((share, lease))
            held = [(of, lease) for of, lease in self.inside[name] if lease.held]
            leases = [lease for _, lease in held]
            self.over += len(leases) > self.limit and not self.excused(leases)
            self.over += share is not None and sum(of == share for of, _ in held) > 1

    async def tasks(self, count: int) -> None:
        await asyncio.gather(*[self.work(Async(), 100 + number) for number in range(count)])

    async def work(self, io: Any, number: int) -> None:
        chance = random.Random(number)
        while not self.stop.is_set():
            name = chance.choice(self.names)
            share = chance.choice(self.shares) if self.shares else None
            options = {"share": share, "share_limit": 1} if share else {}
            try:
                sem = Semaphore(name, self.limit, **self.options, **options)
                lease = await io.do(sem, "acquire")
                self.got(name, share, lease)
                await io.sleep(chance.random() / 100)
                with self.lock:
                    self.inside[name].remove((share, lease))
                await io.do(lease, "release")
            except (Unavailable, LeaseLost, NotAcquired) as error:
                with self.lock:
                    self.errors[type(error).__name__] += 1
                    self.messages.append(f"{type(error).__name__}: {error}")
                await io.sleep(0.05)
