"""A process of the soak: it acquires, holds, and releases leases in threads and tasks.

Usage: `python -m tests.soak.work SEED SECONDS LOG [mortal]`. With `mortal`, the soak may kill the
process.

All processes append to the file LOG. Each holder of an exclusive name writes a line
`ALIAS NAME FENCE FIRST LAST`. FIRST and LAST are the first and the last time at which the holder
treated its lease as held. Leases of one name must not overlap: of two lines with one NAME, the
line with the larger FENCE must have a FIRST that is not earlier than the LAST of the other line.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import math
import os
import random
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import django

django.setup()
logging.disable(logging.CRITICAL)

from django_redis_sync import (  # noqa: E402
    Lease,
    LeaseLost,
    Lock,
    NotAcquired,
    ReadWriteLock,
    RLock,
    Semaphore,
    Unavailable,
)
from tests.behaviour.both import Async, Sync  # noqa: E402
from tests.support.journal import install_from_env  # noqa: E402

ALIASES = ("kept", "forgetful")
KEEP = {"timeout": 2.0, "renew": True}
PATIENCE = (0, 0.02, 0.5, 2.0, 2.0, 5.0)
EXPECTED = (LeaseLost, NotAcquired, Unavailable)


class Kind(NamedTuple):
    """A primitive that the soak uses.

    `make`: a function that takes a cache alias, and returns the primitive. `permits`: the numbers
    of permits that an acquire may ask for. `alone`: True if the primitive is exclusive. `portable`:
    True if its leases may be detached. `mortal`: True if processes that the soak kills may use the
    primitive."""

    make: Callable[[str], Any]
    permits: tuple[int, ...] = (1,)
    alone: bool = False
    portable: bool = True
    mortal: bool = True


KINDS = {
    "lock": Kind(lambda a: Lock("lock", using=a, **KEEP), alone=True),
    "hard": Kind(lambda a: Lock("hard", using=a, timeout=0.3), alone=True),
    "again": Kind(lambda a: RLock("again", using=a, **KEEP), alone=True, portable=False),
    "three": Kind(lambda a: Semaphore("three", 3, using=a, **KEEP)),
    "weighed": Kind(lambda a: Semaphore("weighed", 5, using=a, **KEEP), permits=(1, 1, 2, 5)),
    "unfair": Kind(lambda a: Semaphore("unfair", 2, using=a, fair=False, **KEEP)),
    "pause": Kind(lambda a: Semaphore("pause", 2, using=a, min_hold=0.05, **KEEP)),
    "ever": Kind(lambda a: Lock("ever", using=a, timeout=math.inf), (1,), True, False, False),
    "readers": Kind(lambda a: ReadWriteLock("rw", using=a, **KEEP).read, portable=False),
    "writer": Kind(lambda a: ReadWriteLock("rw", using=a, **KEEP).write, portable=False),
}
#: The names of KINDS in Redis. The readers and the writer use one name.
NAMES = sorted({"rw" if kind in ("readers", "writer") else kind for kind in KINDS})


class Log:
    """Counts and unexpected errors of this process, and the file LOG, which all processes share."""

    def __init__(self, path: str) -> None:
        self.file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        self.counts: Counter[str] = Counter()
        self.unexpected: list[str] = []

    def odd(self) -> None:
        if len(self.unexpected) < 5:
            self.unexpected.append(traceback.format_exc())


class Turn:
    """One acquire, hold, and release of a random primitive, in sync or async code."""

    def __init__(self, chance: random.Random, mortal: bool, log: Log) -> None:
        names = [name for name, kind in KINDS.items() if kind.mortal or not mortal]
        self.name = chance.choice(names)
        self.kind, self.alias, self.log = KINDS[self.name], chance.choice(ALIASES), log
        self.permits, self.patience = chance.choice(self.kind.permits), chance.choice(PATIENCE)
        self.hold = chance.choice((0.0, 0.001, 0.003, 0.003, 0.01))
        if chance.random() < 0.01:
            self.hold = chance.choice((0.4, 0.4, 2.5))  # some leases expire within this time
        self.extra = chance.choice(("", "", "", "", "renew", "owned", "handle", "again", "drop"))
        if self.extra == "drop" and (chance.random() > 0.05 or not self.kind.mortal):
            self.extra = ""
        self.fence, self.first, self.last = 0, 0.0, 0.0

    def look(self, lease: Lease) -> None:
        """If this process treats the lease as held, record the current time as `last`. At the first
        such call, also record it as `first`."""
        now = time.monotonic()
        if lease.held:
            self.fence, self.first, self.last = lease.fence, self.first or now, now

    async def run(self, io: Any) -> None:
        thing, lease = self.kind.make(self.alias), None
        try:
            waits = {"blocking_timeout": self.patience, "permits": self.permits}
            lease = await io.do(thing, "acquire", **waits)
            self.log.counts["not acquired" if lease is None else "acquired"] += 1
            if lease is not None:
                self.look(lease)
                await self.use(io, thing, lease)
        except (*EXPECTED, asyncio.CancelledError) as error:
            self.log.counts[type(error).__name__] += 1
            for last in [*([thing] * 3 if self.name == "again" else []), lease]:
                if last is not None:
                    with contextlib.suppress(*EXPECTED):
                        await io.do(last, "release")
            if isinstance(error, asyncio.CancelledError):
                raise
        finally:
            if self.kind.alone and self.fence:
                row = f"{self.alias} {self.name} {self.fence} {self.first:.6f} {self.last:.6f}\n"
                os.write(self.log.file, row.encode())

    async def use(self, io: Any, thing: Any, lease: Lease) -> None:
        """Hold the lease, and do `self.extra`. Release the lease, unless `extra` is "drop"."""
        if self.extra in ("renew", "owned"):
            await io.do(lease, self.extra)
        elif self.extra == "again" and self.name == "again":
            await io.do(thing, "acquire")
            await io.do(thing, "release")
        elif self.extra == "again" and self.name == "writer":
            await io.do(lease, "downgrade")
        await io.sleep(self.hold)
        self.look(lease)
        if self.extra == "drop":  # don't release, as if the holder had died
            self.log.counts["dropped"] += 1
            return
        if self.extra == "handle" and self.kind.portable:
            lease = await io.do(Lease, "from_handle", await io.do(lease, "detach"))
        await io.do(thing if self.name == "again" else lease, "release")
        self.log.counts["released"] += 1


async def work(io: Any, chance: random.Random, mortal: bool, log: Log, end: float) -> None:
    """Run turns (see `Turn`) until the time `end`. In async code, cancel some turns."""
    while time.monotonic() < end:
        turn = Turn(chance, mortal, log).run(io)
        try:
            if isinstance(io, Async) and chance.random() < 0.05:
                task = asyncio.ensure_future(turn)
                asyncio.get_running_loop().call_later(chance.random() / 10, task.cancel)
                turn = task
            await turn
        except asyncio.CancelledError:
            pass
        except Exception:
            log.odd()
        await io.sleep(chance.random() / 100)


def main(seed: str, seconds: str, path: str, *mortal: str) -> None:
    """Work in threads, and in tasks of one event loop. Print counts and errors as JSON."""
    log, end = Log(path), time.monotonic() + float(seconds)

    def worker(io: Any, number: int) -> Any:
        return work(io, random.Random(int(seed) * 1000 + number), bool(mortal), log, end)

    async def tasks() -> None:
        await asyncio.gather(*[worker(Async(), 100 + number) for number in range(12)])

    with ThreadPoolExecutor(7) as threads:
        ran = [threads.submit(Sync().run, worker(Sync(), number)) for number in range(6)]
        ran.append(threads.submit(asyncio.run, tasks()))
    for future in ran:
        future.result()
    print(json.dumps({"counts": log.counts, "unexpected": log.unexpected}))


if __name__ == "__main__":
    install_from_env()
    main(*sys.argv[1:])
