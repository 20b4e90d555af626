"""The contenders, which are this project and other lock libraries, behind one interface.

A contender is a function with the arguments (url, name, limit). It returns a function `enter`. Each
call of `enter()` returns a context manager, which acquires and releases. Each thread calls a sync
contender once. Each process calls an async contender once, and gets async context managers. The
benchmarks skip contenders that aren't installed. Each contender uses its library as the first
example of the library's documentation does, with one client per process.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from functools import cache, partial
from typing import Any

OURS = "django_redis_sync"
REDIS_PY = "redis-py Lock"

Sync = Callable[[str, str, int], Callable[[], AbstractContextManager[Any]]]
Async = Callable[[str, str, int], Callable[[], AbstractAsyncContextManager[Any]]]

#: Lease duration in seconds, for contenders that have leases.
LEASE = 30


def project_client() -> Any:
    """Return the Redis client of Django's default cache. redis-py's Lock uses the same client."""
    from django.core.cache import caches

    return caches["default"].client.get_client(write=True)


@cache
def client(url: str) -> Any:
    import redis

    return redis.Redis.from_url(url, max_connections=10_000)


def ours(url: str, name: str, limit: int) -> Callable[[], Any]:
    from django_redis_sync import Semaphore

    semaphore = Semaphore(name, limit)
    return lambda: semaphore


def redis_py(url: str, name: str, limit: int, **options: Any) -> Callable[[], Any]:
    lock = project_client().lock(name, timeout=LEASE, **options)
    return lambda: lock


def python_redis_lock(url: str, name: str, limit: int) -> Callable[[], Any]:
    import redis_lock

    lock = redis_lock.Lock(client(url), name, expire=LEASE)
    return lambda: lock


def pottery(url: str, name: str, limit: int) -> Callable[[], Any]:
    from pottery import Redlock

    lock = Redlock(key=name, masters={client(url)}, auto_release_time=LEASE)
    return lambda: lock


def redis_semaphore(url: str, name: str, limit: int) -> Callable[[], Any]:
    import redis_semaphore as bluele

    semaphore = bluele.Semaphore(client(url), limit, namespace=name)
    return lambda: semaphore


def steindamm(url: str, name: str, limit: int) -> Callable[[], Any]:
    from steindamm import SyncSemaphore

    semaphore = SyncSemaphore.create(
        connection=client(url), name=name, capacity=limit, expiry=LEASE, max_sleep=0
    )
    return lambda: semaphore


def async_redis_rate_limiters(url: str, name: str, limit: int) -> Callable[[], Any]:
    from async_redis_rate_limiters import DistributedSemaphoreManager

    manager = DistributedSemaphoreManager(redis_url=url, redis_ttl=LEASE)
    return lambda: manager.get_semaphore(name, limit)


def steindamm_async(url: str, name: str, limit: int) -> Callable[[], Any]:
    from redis.asyncio import Redis
    from steindamm import AsyncSemaphore

    connection = Redis.from_url(url, max_connections=10_000)
    return lambda: AsyncSemaphore.create(
        connection=connection, name=name, capacity=limit, expiry=LEASE, max_sleep=0
    )


def redis_py_async(url: str, name: str, limit: int) -> Callable[[], Any]:
    from redis.asyncio import Redis

    connection = Redis.from_url(url)
    return lambda: connection.lock(name, timeout=LEASE)


#: Name of a contender -> (function, module to import, True if it supports limits other than 1)
SYNC: dict[str, tuple[Sync, str, bool]] = {
    OURS: (ours, "django_redis_sync", True),
    REDIS_PY: (redis_py, "redis", False),
    "redis-py Lock, sleep 0.001": (partial(redis_py, sleep=0.001), "redis", False),
    "python-redis-lock": (python_redis_lock, "redis_lock", False),
    "pottery": (pottery, "pottery", False),
    "redis-semaphore": (redis_semaphore, "redis_semaphore", True),
    "steindamm": (steindamm, "steindamm", True),
}
ASYNC: dict[str, tuple[Async, str, bool]] = {
    OURS: (ours, "django_redis_sync", True),
    "async-redis-rate-limiters": (async_redis_rate_limiters, "async_redis_rate_limiters", True),
    "steindamm": (steindamm_async, "steindamm", True),
    "redis-py Lock": (redis_py_async, "redis", False),
}


def installed(kind: dict[str, Any], limit: int, *without: str) -> list[str]:
    """Return the names of the installed contenders that support the limit, this project first.
    `kind`: `SYNC` or `ASYNC`. `without`: names to leave out."""
    return [
        name
        for name, (_, module, any_limit) in kind.items()
        if name not in without
        and (any_limit or limit == 1)
        and importlib.util.find_spec(module) is not None
    ]
