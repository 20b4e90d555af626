"""Gates at which views wait until a test opens them, and counts of the requests inside a view.

Both are in the Redis of the test run, so they work with views in other processes, and while the
Redis of the limits is down.
"""

import asyncio
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager

import redis
from django.conf import settings

#: Seconds after which views no longer wait at a gate.
MAX_WAIT = 60
#: Seconds between two checks of a gate.
TICK = 0.02


def connect() -> redis.Redis:
    """Return a client with all permissions. The Redis user of the limits may have fewer."""
    url = os.environ.get("DJANGO_REDIS_SYNC_TEST_RAW_URL", settings.CACHES["default"]["LOCATION"])
    return redis.Redis.from_url(url, decode_responses=True)


def key(what: str, name: str) -> str:
    return f"{settings.PREFIX}:{what}:{name}"


def open_gate(name: str) -> None:
    with connect() as db:
        db.set(key("gate", name), 1)


def while_shut(name: str) -> Iterator[None]:
    """Yield until the gate is open, or `MAX_WAIT` seconds have passed."""
    end = time.monotonic() + MAX_WAIT
    with connect() as db:
        while not db.exists(key("gate", name)) and time.monotonic() < end:
            yield


def wait(name: str) -> None:
    for _ in while_shut(name):
        time.sleep(TICK)


async def await_(name: str) -> None:
    """Async version of `wait()`."""
    for _ in while_shut(name):
        await asyncio.sleep(TICK)


@contextmanager
def inside(name: str, client: str = ""):
    """Count a request inside the block. Record its arrival and the highest count."""
    with connect() as db:
        number = db.incr(key("inside", name))
        db.rpush(key("arrived", name), client)
        db.zadd(key("peak", name), {"peak": number}, gt=True)
    try:
        yield
    finally:
        with connect() as db:
            db.decr(key("inside", name))


def record_arrival(name: str, client: str) -> None:
    """Record an arrival without counting a request."""
    with connect() as db:
        db.rpush(key("arrived", name), client)


def now_inside(name: str) -> int:
    with connect() as db:
        return int(db.get(key("inside", name)) or 0)


def arrived(name: str) -> list[str]:
    """Return the clients in order of arrival."""
    with connect() as db:
        return db.lrange(key("arrived", name), 0, -1)


def peak(name: str) -> int:
    """Return the highest number of requests that were inside at the same time."""
    with connect() as db:
        return int(db.zscore(key("peak", name), "peak") or 0)
