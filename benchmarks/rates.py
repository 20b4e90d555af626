"""Let the threads of eight processes wait for a rate, with this project and others.

`python -m benchmarks.rates` prints a line for each case. It starts a Redis server. Libraries that
aren't installed are left out. All threads always want a permit. The columns:

- used: the permits that were granted after the first period, by those that the rate allows.
- granted: the most permits that were granted in a period, by the clock of the Redis server. Only
  this project tells when a permit was granted.
- started: the most calls that started in a period. A call starts when its process runs after the
  grant, and has asked the server for its time.
- commands: the commands that were sent to the server, per grant.
"""

from __future__ import annotations

import multiprocessing
import threading
import time
from bisect import bisect_left
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from importlib.util import find_spec
from itertools import count
from typing import Any, NamedTuple

import redis

from devtools.servers import RedisServer

from . import project

PROCESSES, THREADS, HOLD = 8, 4, 0.02
_SPAWN = multiprocessing.get_context("spawn")


class Case(NamedTuple):
    """At most `permits` in `period` seconds, and at most `limit` at a time; None for any number."""

    permits: int
    period: int
    limit: int | None = None

    def __str__(self) -> str:
        limit = "" if self.limit is None else f", {self.limit} at a time"
        return f"{self.permits}/{self.period}s{limit}"


#: Waits for a permit, and returns a context manager that holds it. Its value is a lease, or None.
Enter = Callable[[], AbstractContextManager[Any]]


def ours(url: str, case: Case) -> Enter:
    from django_redis_sync import Semaphore

    project.setup(url)
    semaphore = Semaphore("paced", case.limit, rate=f"{case.permits}/{case.period}s")
    return lambda: semaphore


def limits(url: str, case: Case) -> Enter:
    from limits import RateLimitItemPerSecond
    from limits.storage import RedisStorage
    from limits.strategies import MovingWindowRateLimiter

    limiter, item = MovingWindowRateLimiter(RedisStorage(url)), RateLimitItemPerSecond(*case[:2])

    def enter() -> Any:
        while not limiter.hit(item, "paced"):
            opens = limiter.get_window_stats(item, "paced").reset_time
            time.sleep(max(0.001, opens - time.time()))
        return nullcontext()

    return enter


def pyrate_limiter(url: str, case: Case) -> Enter:
    from pyrate_limiter import Limiter, Rate, RedisBucket

    rates = [Rate(case.permits, case.period * 1000)]
    limiter = Limiter(RedisBucket.init(rates, redis.Redis.from_url(url), "paced"))
    return lambda: nullcontext(limiter.try_acquire("paced") and None)


def steindamm(url: str, case: Case) -> Enter:
    from steindamm import SyncTokenBucket

    bucket = SyncTokenBucket.create(
        connection=redis.Redis.from_url(url),
        name="paced",
        capacity=case.permits,
        refill_frequency=case.period / case.permits,
        max_sleep=0,
    )
    return lambda: bucket


LIBRARIES = {one.__name__: one for one in (ours, limits, pyrate_limiter, steindamm)}
CASES = [Case(100, 1), Case(100, 1, 10), Case(500, 5), Case(500, 5, 10)]


class Seen(NamedTuple):
    """What a process saw: when calls were granted and started, in µs of the server's clock, and the
    number of commands."""

    granted: list[int]
    started: list[int]
    commands: int


def _process(name: str, url: str, case: Case, seconds: float, ready: Any, results: Any) -> None:
    send, sent = redis.connection.AbstractConnection.send_packed_command, count()

    def counting(self: Any, *args: Any, **kwargs: Any) -> Any:
        next(sent)
        return send(self, *args, **kwargs)

    redis.connection.AbstractConnection.send_packed_command = counting
    enter, clock = LIBRARIES[name], redis.Redis.from_url(url, max_connections=THREADS)
    granted, started = list[int](), list[int]()

    def work() -> None:
        own = enter(url, case)
        ready.wait()
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            with own() as lease:
                now, micros = clock.time()
                started.append(now * 1_000_000 + micros)
                if lease is not None:
                    granted.append(lease.fence)
                if case.limit is not None:
                    time.sleep(HOLD)

    if name == "ours":
        project.setup(url)
    threads = [threading.Thread(target=work) for _ in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    results.put(Seen(granted, started, next(sent) - len(started)))


def run(name: str, url: str, case: Case) -> str:
    seconds = max(8.0, 3.0 * case.period)
    ready, results = _SPAWN.Barrier(PROCESSES * THREADS), _SPAWN.Queue()
    args = name, url, case, seconds, ready, results
    processes = [_SPAWN.Process(target=_process, args=args) for _ in range(PROCESSES)]
    for process in processes:
        process.start()
    seen: list[Seen] = [results.get(timeout=seconds + 120) for _ in processes]
    for process in processes:
        process.join()
    granted = sorted(at for one in seen for at in one.granted)
    started = sorted(at for one in seen for at in one.started)
    begin, end = started[0] + case.period * 1_000_000, started[0] + int(seconds * 1_000_000)
    used = bisect_left(started, end) - bisect_left(started, begin)
    allowed = case.permits * (end - begin) / 1_000_000 / case.period
    cells = [
        f"{used / allowed:.1%}",
        str(most_in(granted, case.period)) if granted else "",
        str(most_in(started, case.period)),
        f"{sum(one.commands for one in seen) / len(started):.1f}",
    ]
    return f"{case} | {name} | {' | '.join(cells)}"


def most_in(times: Sequence[int], period: int) -> int:
    """Return the most of these times, in µs, that are within `period` seconds."""
    ends = (bisect_left(times, begin + period * 1_000_000) for begin in times)
    return max(end - place for place, end in enumerate(ends))


def main() -> None:
    print("case | library | used | granted | started | commands")
    with RedisServer() as server:
        for case in CASES:
            for name in LIBRARIES:
                if name == "ours" or (case.limit is None and find_spec(name)):
                    print(run(name, server.url, case), flush=True)
                    redis.Redis.from_url(server.url).flushall()


if __name__ == "__main__":
    main()
