"""Gates and counts for views. A view waits at a gate until a test opens the gate. The counts show
how many requests are inside a view.

The Redis server of the test run stores the gates and the counts. So they work for views in other
processes, and while the Redis server of the request limits is down.
"""

import os
import time
from contextlib import contextmanager

import redis
from django.conf import settings

#: Seconds after which views no longer wait at a gate.
MAX_WAIT = 60
#: Seconds between two checks of a gate.
TICK = 0.02


def ask(command, what, name, *args):
    """Send a Redis command as a user with all permissions. Its key consists of `what`, such as
    "gate", and of `name`."""
    url = os.environ.get("DJANGO_REDIS_SYNC_TEST_RAW_URL", settings.CACHES["default"]["LOCATION"])
    with redis.Redis.from_url(url, decode_responses=True) as db:
        return db.execute_command(command, f"{settings.PREFIX}:{what}:{name}", *args)


def open_gate(name):
    ask("SET", "gate", name, 1)


def while_shut(name):
    """Yield while the gate `name` is shut, but for at most `MAX_WAIT` seconds. The caller has to
    sleep after each yield. If `name` is None, yield nothing."""
    end = time.monotonic() + MAX_WAIT
    while name and not ask("EXISTS", "gate", name) and time.monotonic() < end:
        yield


@contextmanager
def inside(name, client=""):
    """During the block, count a request as inside a view. Record its arrival, and the highest
    number of requests that were inside at the same time."""
    number = ask("INCR", "inside", name)
    record_arrival(name, client)
    ask("ZADD", "peak", name, "GT", number, "peak")
    try:
        yield
    finally:
        ask("DECR", "inside", name)


def record_arrival(name, client):
    """Record that a request of `client` arrived, without counting it as inside a view."""
    ask("RPUSH", "arrived", name, client)


def now_inside(name):
    return int(ask("GET", "inside", name) or 0)


def arrived(name):
    """Return the clients in order of arrival."""
    return ask("LRANGE", "arrived", name, 0, -1)


def peak(name):
    """Return the highest number of requests that were inside a view at the same time."""
    return int(ask("ZSCORE", "peak", name, "peak") or 0)
