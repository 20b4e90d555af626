"""Measure Celery tasks with on_full="hold", in real workers.

`python -m benchmarks.jobs` prints a line for each case. The broker is a Redis server that the
benchmark starts, or that of `--broker URL`. `--prefetch`: Celery's prefetch count. The columns:

- time / ideal: from the first begin to the last end, by (jobs * seconds / limit).
- moved: by how many places a job began too early or too late; mean and maximum.
- deliveries: how often a worker received each job.
- free jobs: median start of tasks of 20 ms without a limit, sent among the others, by that without
  limited tasks.
- most: the highest number of limited jobs at a time, and of runs of a single job.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

import redis

from devtools.servers import RedisServer
from tests.celery_site.effects import Effect
from tests.celery_site.site import Site

FREE = 0.02
PROCESSES = 8


class Case(NamedTuple):
    """`durations`: of each job in seconds, in the order of sending. `workers`: how many workers
    with PROCESSES processes."""

    name: str
    durations: list[float]
    limit: int
    workers: int = 1


CASES = [
    Case("1,000 x 20 ms, limit 2", [0.02] * 1000, 2),
    Case("200 x 500 ms, limit 4", [0.5] * 200, 4),
    Case("100 x 2 s, limit 10, two workers", [2.0] * 100, 10, 2),
    Case("8 s, then 10 x 200 ms, limit 1", [8.0, *[0.2] * 10], 1),
]
SEND = """
from tests.celery_site.effects import note
note("sent", 0)
for n, seconds in enumerate({durations}):
    {limited}
    {free}
"""


class Run(NamedTuple):
    effects: list[Effect]
    deliveries: float
    most: int
    of_one_job: int


def run(case: Case, broker: str, ours: str, prefetch: int, limited: bool, free: bool) -> Run:
    """Run the jobs of a case, or only as many jobs without a limit. `ours`: URL of the Redis server
    for the limit."""
    os.environ |= {
        "CELERY_SITE_LIMIT": str(case.limit),
        "CELERY_SITE_PREFETCH": str(prefetch),
        "DJANGO_REDIS_SYNC_TEST_URL": ours,
        "DJANGO_SETTINGS_MODULE": "tests.settings",
    }
    jobs = range(len(case.durations))
    with tempfile.TemporaryDirectory() as folder:
        site = Site(broker, ours[:-1] + "2", Path(folder))
        try:
            for _ in range(case.workers):
                site.start(PROCESSES)
            # Each process runs its first limited task slowly, because it connects to Redis.
            warm = "[{}.delay(-n - 1, 0.5) for n in range(40)]".format
            site.send(f"for r in [*{warm('free')}, *{warm('limited')}]: r.get(timeout=200)")
            site.send(
                SEND.format(
                    durations=case.durations,
                    limited="limited.delay(n, seconds)" if limited else "",
                    free=f"free.delay(n, {FREE})" if free else "",
                )
            )
            if limited:
                site.ended(jobs, 600)
            if free:
                site.until(lambda: {*jobs} <= {*site.effects.jobs("begin free")}, 600)
            logs = [path.read_text(errors="replace") for path in Path(folder).glob("worker*.log")]
            received = sum(
                "app.limited[" in line and line.endswith("received")
                for log in logs
                for line in log.splitlines()
            )
            effects = [effect for effect in site.effects.all() if effect.job >= 0]
            most = site.effects.most_at_once(), site.effects.most_at_once(of_one_job=True)
            return Run(effects, (received - 40) / len(jobs), *most)
        finally:
            site.stop()
            redis.Redis.from_url(ours).flushall()


def start_of_free(effects: list[Effect]) -> float:
    """Return the median time in seconds from the first sending to the start of a free job."""
    sent = min(effect.at for effect in effects if effect.word == "sent")
    begun = [effect.at for effect in effects if effect.word == "begin free"]
    return statistics.median(begun) - sent


def measure(case: Case, broker: str, ours: str, prefetch: int) -> str:
    alone = run(case, broker, ours, prefetch, limited=False, free=True)
    both = run(case, broker, ours, prefetch, limited=True, free=True)
    only = run(case, broker, ours, prefetch, limited=True, free=False)
    begins = [effect for effect in only.effects if effect.word == "begin"]
    ends = [effect for effect in only.effects if effect.word == "end"]
    ideal = sum(case.durations) / case.limit
    order = dict.fromkeys(effect.job for effect in begins)
    moved = [abs(place - job) for place, job in enumerate(order)]
    free = start_of_free(both.effects) / start_of_free(alone.effects)
    return (
        f"{case.name}, prefetch {prefetch} | {(ends[-1].at - begins[0].at) / ideal:.2f} "
        f"| {statistics.mean(moved):.1f}, {max(moved)} | {only.deliveries:.2f} "
        f"| {free:.2f} | {max(only.most, both.most)}, {max(only.of_one_job, both.of_one_job)}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.jobs", description=__doc__)
    parser.add_argument("--broker")
    parser.add_argument("--cases", type=int, nargs="*", default=[*range(len(CASES))])
    parser.add_argument("--prefetch", type=int, nargs="*", default=[1, 4])
    given: Any = parser.parse_args()
    print("case | time / ideal | moved | deliveries | free jobs / alone | most")
    with RedisServer() as own, RedisServer() as ours:
        for case in [CASES[number] for number in given.cases]:
            for prefetch in given.prefetch:
                began = time.monotonic()
                line = measure(case, given.broker or own.url, ours.url, prefetch)
                print(f"{line} ({time.monotonic() - began:.0f} s)", flush=True)


if __name__ == "__main__":
    main()
