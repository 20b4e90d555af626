"""Measure equal calls of a single_flight function in many processes.

`python -m benchmarks.flights` starts 8 processes with 125 threads each, and then one with an event
loop of 500 tasks and one with a thread. All call a function of 2 s at the same moment. It prints
how often the function ran, when the last caller had the result, and the commands per caller.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
import time
from typing import Any

import redis

from devtools.servers import RedisServer

from . import project

SECONDS = 2
CROWDS = {
    "1,000 threads in 8 processes": [("threads", 125)] * 8,
    "500 tasks of an event loop": [("tasks", 500), ("threads", 1)],
}


def crowd(url: str, kind: str, number: int) -> None:
    """Call the function `number` times at once when a line is read. Print the last end."""
    project.setup(url)
    from django_redis_sync import single_flight

    ends: list[float] = []

    def body(key: int) -> list[int]:
        with redis.Redis.from_url(url) as client:
            client.incr("runs")
            time.sleep(SECONDS)
            client.set("value_at", repr(time.time()))
        return [key] * 20

    function = single_flight("insight:{key}", ttl=60)(body)

    async def abody(key: int) -> list[int]:
        return await asyncio.to_thread(body, key)

    afunction = single_flight("insight:{key}", ttl=60)(abody)

    def call() -> None:
        function(7)
        ends.append(time.time())

    async def acall() -> None:
        await afunction(7)
        ends.append(time.time())

    async def all_tasks() -> None:
        await asyncio.gather(*[acall() for _ in range(number)])

    print("ready", flush=True)
    sys.stdin.readline()
    if kind == "tasks":
        asyncio.run(all_tasks())
    else:
        threads = [threading.Thread(target=call) for _ in range(number)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    print(max(ends), flush=True)


def main() -> None:
    for name, crowds in CROWDS.items():
        print(f"{name}: {measure(crowds)}", flush=True)


def measure(crowds: list[tuple[str, int]]) -> str:
    with RedisServer() as server, redis.Redis.from_url(server.url) as client:
        words = [sys.executable, "-m", "benchmarks.flights", server.url]
        pipes: Any = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        started = [
            subprocess.Popen([*words, kind, str(number)], **pipes) for kind, number in crowds
        ]
        for process in started:
            process.stdout.readline()
        client.config_resetstat()
        for process in started:
            process.stdin.write("go\n")
            process.stdin.flush()
        last = max(float(process.stdout.readline()) for process in started)
        for process in started:
            process.wait(60)
        statistics: Any = client.info("commandstats")
        calls = sum(one["calls"] for one in statistics.values())
        value_at, runs = (float(client.get(key) or 0) for key in ("value_at", "runs"))
        return (
            f"{runs:.0f} run, last answer {last - value_at:.2f} s after the value, "
            f"{calls / sum(number for _, number in crowds):.1f} commands per caller"
        )


if __name__ == "__main__":
    if len(sys.argv) > 1:
        crowd(sys.argv[1], sys.argv[2], int(sys.argv[3]))
    else:
        main()
