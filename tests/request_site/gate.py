"""How a test steers a view in another process: gates that it opens, and a count of who is inside.

Both live in the tests' own Redis, whatever the limits use.
"""

import asyncio
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager

import redis
from django.conf import settings

#: Seconds after which a gate that nobody opens opens by itself.
PATIENCE = 60
TICK = 0.02


def witness() -> redis.Redis:
    """As a user who may do everything: the limits' own may do what they need."""
    url = os.environ.get("DJANGO_REDIS_SYNC_TEST_RAW_URL", settings.CACHES["default"]["LOCATION"])
    return redis.Redis.from_url(url, decode_responses=True)


def key(what: str, name: str) -> str:
    return f"{settings.PREFIX}:{what}:{name}"


def open_gate(name: str) -> None:
    with witness() as client:
        client.set(key("gate", name), 1)


def shut(name: str) -> Iterator[None]:
    """As often as somebody looks, for as long as it is shut."""
    end = time.monotonic() + PATIENCE
    with witness() as client:
        while not client.exists(key("gate", name)) and time.monotonic() < end:
            yield


def wait(name: str) -> None:
    for _ in shut(name):
        time.sleep(TICK)


async def await_(name: str) -> None:
    for _ in shut(name):
        await asyncio.sleep(TICK)


@contextmanager
def inside(name: str, who: str = ""):
    """Counts in and out; notes the order of arrival and the most that were inside together."""
    with witness() as client:
        number = client.incr(key("inside", name))
        client.rpush(key("arrived", name), who)
        client.zadd(key("peak", name), {"peak": number}, gt=True)
    try:
        yield
    finally:
        with witness() as client:
            client.decr(key("inside", name))


def note(name: str, who: str) -> None:
    """One more arrival, of one that is not counted."""
    with witness() as client:
        client.rpush(key("arrived", name), who)


def now_inside(name: str) -> int:
    with witness() as client:
        return int(client.get(key("inside", name)) or 0)


def arrived(name: str) -> list[str]:
    with witness() as client:
        return client.lrange(key("arrived", name), 0, -1)


def peak(name: str) -> int:
    with witness() as client:
        return int(client.zscore(key("peak", name), "peak") or 0)
