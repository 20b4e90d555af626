"""Measure the cost of on_full="retry", with which Celery sends a rejected task again.

`python -m benchmarks.jobs` prints a line for each combination of two options: the duration of a
limited job (`--seconds`) and Celery's prefetch count (`--prefetch`). By default, each run has 200
limited jobs, and 200 jobs of 20 ms without a limit ("free" jobs). The limit is 4, and 8 processes
run the jobs. The broker is a Redis server that the benchmark starts, or that of `--broker URL`.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import redis

from devtools.servers import RedisServer
from tests.celery_site.site import Site

LIMIT, PROCESSES, FREE = 4, 8, 0.02
SEND = """
import time
from tests.celery_site.effects import note
for n in range({jobs}):
    {limited}
    {free}
note("sent", 0)
"""


def sent(jobs: int, seconds: float, limited: bool, free: bool) -> str:
    return SEND.format(
        jobs=jobs,
        limited=f"limited.delay(n, {seconds})" if limited else "",
        free=f"free.delay(n, {FREE})" if free else "",
    )


def run(broker: str, ours: str, seconds: float, prefetch: int, jobs: int, **kinds: bool) -> Any:
    """Run jobs in a Celery worker. Return three objects: the events that the jobs recorded, the
    number of deliveries per limited job, and the maximum number of limited jobs that ran at once.

    `broker`: URL of the broker. `ours`: URL of the Redis server for the limit. `seconds`: duration
    of a limited job. `prefetch`: Celery's prefetch count. `jobs`: number of jobs of each kind.
    `kinds`: `limited=True` sends limited jobs, and `free=True` sends jobs without a limit."""
    os.environ |= {
        "CELERY_SITE_LIMIT": str(LIMIT),
        "CELERY_SITE_PREFETCH": str(prefetch),
        "DJANGO_REDIS_SYNC_TEST_URL": ours,
        "DJANGO_SETTINGS_MODULE": "tests.settings",
    }
    with tempfile.TemporaryDirectory() as folder:
        site = Site(broker, ours[:-1] + "2", Path(folder))
        raw = redis.Redis.from_url(ours)
        raw.flushall()
        try:
            site.start(PROCESSES)
            site.send("free.delay(-1, 0).get(timeout=120)")  # wait until the worker runs
            site.send(sent(jobs, seconds, **kinds))
            if kinds["limited"]:
                site.ended(range(jobs), 600)
            site.until(
                lambda: not kinds["free"] or len(site.effects.jobs("begin free")) > jobs, 600
            )
            (stats,) = [*raw.keys("*{exports}:stats"), b"none"][:1]
            visits = sum(int(n) for what, n in raw.hgetall(stats).items() if what.endswith(b":v"))
            return site.effects.all(), visits / jobs, site.effects.most_at_once()
        finally:
            site.stop()
            raw.flushall()


def waits(effects: Any) -> float:
    """Return the median time in seconds from the first event of a run to the start of a free job.
    Ignore the job with the number -1, which `run` sends to wait for the worker."""
    begun = [e.at for e in effects if e.word == "begin free" and e.job >= 0]
    return statistics.median(begun) - min(e.at for e in effects if e.word == "sent" or e.job >= 0)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.jobs", description=__doc__)
    parser.add_argument("--broker")
    parser.add_argument("--jobs", type=int, default=200)
    parser.add_argument("--seconds", type=float, nargs="*", default=[0.5, 0.02])
    parser.add_argument("--prefetch", type=int, nargs="*", default=[1, 4])
    given = parser.parse_args()
    print("job, prefetch | time / ideal | deliveries | moved by | free jobs / alone | max at once")
    with RedisServer() as own, RedisServer() as ours:
        broker = given.broker or own.url
        for seconds in given.seconds:
            for prefetch in given.prefetch:
                began = time.monotonic()
                size = broker, ours.url, seconds, prefetch, given.jobs
                alone, _, _ = run(*size, limited=False, free=True)
                effects, deliveries, most = run(*size, limited=True, free=True)
                begun = [e for e in effects if e.word == "begin"]
                ends = [e for e in effects if e.word == "end"]
                took = ends[-1].at - begun[0].at
                ideal = given.jobs * seconds / LIMIT
                order = dict.fromkeys(e.job for e in begun)
                moved = [abs(place - job) for place, job in enumerate(order)]
                print(
                    f"{seconds * 1000:.0f} ms, {prefetch} | {took / ideal:.2f} | {deliveries:.1f} "
                    f"| {statistics.mean(moved):.1f}, {max(moved)} "
                    f"| {waits(effects) / waits(alone):.2f} | {most} "
                    f"({time.monotonic() - began:.0f} s)",
                    flush=True,
                )


if __name__ == "__main__":
    main()
