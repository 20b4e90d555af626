"""The work of the soak: acquire, hold, and release in threads and tasks.

Each holder of an exclusive name records when it treated its lease as held: all processes append
lines `alias name fence first last` to one file. Of two holders, the one with the smaller fence must
have stopped before the other began.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
import random
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable
from typing import Any, NamedTuple

from django_redis_sync import (
    Lease,
    LeaseLost,
    Lock,
    NotAcquired,
    ReadWriteLock,
    RLock,
    Semaphore,
    Unavailable,
)
from django_redis_sync.engine.wire import clock

KEEP = {"timeout": 2.0, "renew": True}


class Kind(NamedTuple):
    """A primitive. `alone`: exclusive. `mortal`: also used in processes that may be killed, so it
    has no permanent leases."""

    make: Callable[[str], Any]
    permits: tuple[int, ...] = (1,)
    alone: bool = False
    mortal: bool = True


KINDS = {
    "lock": Kind(lambda a: Lock("lock", using=a, **KEEP), alone=True),
    "hard": Kind(lambda a: Lock("hard", using=a, timeout=0.3), alone=True),
    "again": Kind(lambda a: RLock("again", using=a, **KEEP), alone=True),
    "three": Kind(lambda a: Semaphore("three", 3, using=a, **KEEP)),
    "weighed": Kind(lambda a: Semaphore("weighed", 5, using=a, **KEEP), permits=(1, 1, 2, 5)),
    "unfair": Kind(lambda a: Semaphore("unfair", 2, using=a, fair=False, **KEEP)),
    "pause": Kind(lambda a: Semaphore("pause", 2, using=a, min_hold=0.05, **KEEP)),
    "ever": Kind(lambda a: Lock("ever", using=a, timeout=math.inf), alone=True, mortal=False),
    "readers": Kind(lambda a: ReadWriteLock("rw", using=a, **KEEP).read),
    "writer": Kind(lambda a: ReadWriteLock("rw", using=a, **KEEP).write),
}
#: The names on the server.
NAMES = sorted({"rw" if kind in ("readers", "writer") else kind for kind in KINDS})
PATIENCE = (0, 0.02, 0.5, 2.0, 2.0, 5.0)


class Log:
    """Counts, unexpected errors, and the records of exclusive leases."""

    def __init__(self, path: str) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        self.counts: Counter[str] = Counter()
        self.unexpected: list[str] = []

    def believed(self, alias: str, name: str, fence: int, first: float, last: float) -> None:
        os.write(self._file, f"{alias} {name} {fence} {first:.6f} {last:.6f}\n".encode())

    def odd(self) -> None:
        self.counts["unexpected"] += 1
        if len(self.unexpected) < 5:
            self.unexpected.append(traceback.format_exc())


class Turn:
    """One cycle of a worker. Sync and async cycles draw the same random values first."""

    def __init__(self, chance: random.Random, aliases: list[str], mortal: bool, log: Log) -> None:
        names = [name for name, kind in KINDS.items() if kind.mortal or not mortal]
        self.name = chance.choice(names)
        self.kind, self.alias, self.log = KINDS[self.name], chance.choice(aliases), log
        self.permits = chance.choice(self.kind.permits)
        self.patience = chance.choice(PATIENCE)
        self.hold = chance.choice((0.0, 0.001, 0.003, 0.003, 0.01))
        if chance.random() < 0.01:
            self.hold = chance.choice((0.4, 0.4, 2.5))  # longer than some leases
        self.extra = chance.choice(("", "", "", "", "renew", "owned", "handle", "again", "drop"))
        if self.extra == "drop" and (chance.random() > 0.05 or not self.kind.mortal):
            self.extra = ""
        self.fence, self.first, self.last = 0, 0.0, 0.0

    def got(self, lease: Lease) -> None:
        self.log.counts["acquired"] += 1
        now = clock()
        if lease.held:  # a process that was stopped here may have lost the lease
            self.fence, self.first, self.last = lease.fence, now, now

    def look(self, lease: Lease) -> None:
        now = clock()
        if lease.held:
            self.last = now

    def over(self) -> None:
        if self.kind.alone and self.fence:
            self.log.believed(self.alias, self.name, self.fence, self.first, self.last)

    def run(self) -> None:
        counts, thing, lease = self.log.counts, self.kind.make(self.alias), None
        try:
            lease = thing.acquire(blocking_timeout=self.patience, permits=self.permits)
            if lease is None:
                counts["not acquired"] += 1
                return
            self.got(lease)
            if self.extra == "renew":
                lease.renew()
            elif self.extra == "owned":
                lease.owned()
            elif self.extra == "again" and self.name == "again":
                thing.acquire()
                thing.release()
            elif self.extra == "again" and self.name == "writer":
                lease.downgrade()
            time.sleep(self.hold)
            self.look(lease)
            if self.extra == "drop":
                counts["dropped"] += 1  # stands for the death of the holder
                return
            if self.extra == "handle" and self.portable:
                lease = Lease.from_handle(lease.detach())
            (thing if self.name == "again" else lease).release()
            counts["released"] += 1
        except (LeaseLost, NotAcquired, Unavailable) as error:
            counts[f"{type(error).__name__}"] += 1
            for last in [*([thing] * 3 if self.name == "again" else []), lease]:
                if last is not None:
                    with contextlib.suppress(LeaseLost, NotAcquired, Unavailable):
                        last.release()
        finally:
            self.over()

    async def arun(self) -> None:
        counts, thing, lease = self.log.counts, self.kind.make(self.alias), None
        try:
            lease = await thing.aacquire(blocking_timeout=self.patience, permits=self.permits)
            if lease is None:
                counts["not acquired"] += 1
                return
            self.got(lease)
            if self.extra == "renew":
                await lease.arenew()
            elif self.extra == "owned":
                await lease.aowned()
            elif self.extra == "again" and self.name == "again":
                await thing.aacquire()
                await thing.arelease()
            elif self.extra == "again" and self.name == "writer":
                await lease.adowngrade()
            await asyncio.sleep(self.hold)
            self.look(lease)
            if self.extra == "drop":
                counts["dropped"] += 1
                return
            if self.extra == "handle" and self.portable:
                lease = await Lease.afrom_handle(await lease.adetach())
            await (thing if self.name == "again" else lease).arelease()
            counts["released"] += 1
        except (LeaseLost, NotAcquired, Unavailable, asyncio.CancelledError) as error:
            counts[f"{type(error).__name__}"] += 1
            for last in [*([thing] * 3 if self.name == "again" else []), lease]:
                if last is not None:
                    with contextlib.suppress(LeaseLost, NotAcquired, Unavailable):
                        await last.arelease()
            if isinstance(error, asyncio.CancelledError):
                raise
        finally:
            self.over()

    @property
    def portable(self) -> bool:
        """True if the lease may be detached: if its handle is lost, it expires within seconds."""
        return self.name not in ("again", "writer", "readers", "ever")


class Threads:
    """Workers in threads, until `join()` is called."""

    def __init__(self, seed: int, count: int, aliases: list[str], mortal: bool, log: Log) -> None:
        self.stop = threading.Event()
        self._args = (aliases, mortal, log)
        self._threads = [
            threading.Thread(target=self._work, args=(seed * 1000 + n,), daemon=True)
            for n in range(count)
        ]
        for thread in self._threads:
            thread.start()

    def _work(self, seed: int) -> None:
        chance, log = random.Random(seed), self._args[2]
        while not self.stop.is_set():
            try:
                Turn(chance, *self._args).run()
            except Exception:
                log.odd()
            time.sleep(chance.random() / 100)

    def join(self, seconds: float) -> int:
        """Stop the workers, and return the number of threads that still run after `seconds`."""
        self.stop.set()
        end = time.monotonic() + seconds
        for thread in self._threads:
            thread.join(max(0.0, end - time.monotonic()))
        return sum(thread.is_alive() for thread in self._threads)


class Tasks:
    """Workers on one event loop in a separate thread. Their turns can be cancelled."""

    def __init__(self, seed: int, count: int, aliases: list[str], log: Log) -> None:
        self._stop, self._log, self._aliases = threading.Event(), log, aliases
        self._turns: list[asyncio.Task[None]] = []
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = threading.Thread(
            target=lambda: asyncio.run(self._main(seed, count)), daemon=True
        )
        self._thread.start()

    async def _main(self, seed: int, count: int) -> None:
        self._loop = asyncio.get_running_loop()
        await asyncio.gather(*[self._work(seed * 1000 + 500 + n) for n in range(count)])

    async def _work(self, seed: int) -> None:
        chance = random.Random(seed)
        while not self._stop.is_set():
            body = Turn(chance, self._aliases, False, self._log).arun()
            turn = asyncio.create_task(body)
            self._turns.append(turn)
            await asyncio.wait([turn])
            self._turns.remove(turn)
            if turn.cancelled():
                self._log.counts["cancelled"] += 1
            else:
                try:
                    turn.result()
                except Exception:
                    self._log.odd()
            await asyncio.sleep(chance.random() / 50)

    def cancel(self, chance: random.Random, count: int) -> None:
        """Cancel some turns at their current await."""

        def some() -> None:
            for turn in chance.sample(self._turns, min(count, len(self._turns))):
                turn.cancel()

        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(some)

    def join(self, seconds: float) -> int:
        """Stop the workers. Return 1 if the loop still runs after `seconds`, else 0."""
        self._stop.set()
        self._thread.join(seconds)
        return int(self._thread.is_alive())
