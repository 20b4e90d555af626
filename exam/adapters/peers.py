"""Other libraries, each used as its own documentation shows, with a lease of LEASE seconds.

Those that have no time to wait are asked again until it is up; those that are async have a loop.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable
from typing import Any

import redis
import redis.asyncio
from django.http import HttpResponse

from ..adapter import Adapter, Lost, Place
from .ours import Loop, Request


def asked_again(once: Callable[[], Any], wait: float, pause: float = 0.05) -> Any:
    """What `once()` says as soon as it is no longer None; None when `wait` seconds are over."""
    end = time.monotonic() + wait
    while True:
        said = once()
        if said is not None or time.monotonic() + pause > end:
            return said
        time.sleep(pause)


class OnRedis(Adapter):
    """With one client, as a process has, and the timeouts that redis-py gives it."""

    def __init__(self, place: Place) -> None:
        super().__init__(place)
        self.client = redis.Redis.from_url(place.url)


class Blocking(OnRedis):
    """For those that wait inside one command for as long as they are told: redis-py's timeout of
    5 s would end that with an error."""

    def __init__(self, place: Place) -> None:
        super().__init__(place)
        self.client = redis.Redis.from_url(place.url, socket_timeout=35)


class RedisPy(OnRedis):
    def acquire(self, wait: float) -> Any:
        lock = self.client.lock(self.place.name, timeout=self.place.lease)
        return lock if lock.acquire(blocking_timeout=wait) else None

    def release(self, grant: Any) -> None:
        try:
            grant.release()
        except redis.exceptions.LockError as error:
            raise Lost(str(error)) from error

    async def aacquire(self, wait: float) -> Any:
        client = redis.asyncio.Redis.from_url(self.place.url)
        lock = client.lock(self.place.name, timeout=self.place.lease)
        return lock if await lock.acquire(blocking_timeout=wait) else None


class PythonRedisLock(Blocking):
    """It takes whole seconds."""

    def acquire(self, wait: float) -> Any:
        import redis_lock

        name, lease = self.place.name, int(self.place.lease)
        lock = redis_lock.Lock(self.client, name, expire=lease, auto_renewal=True)
        if wait < 1:
            return asked_again(lambda: lock if lock.acquire(blocking=False) else None, wait)
        return lock if lock.acquire(timeout=math.ceil(wait)) else None

    def release(self, grant: Any) -> None:
        import redis_lock

        try:
            grant.release()
        except redis_lock.NotAcquired as error:
            raise Lost(str(error)) from error


class Pottery(OnRedis):
    def acquire(self, wait: float) -> Any:
        from pottery import Redlock

        key, lease = self.place.name, self.place.lease
        lock = Redlock(key=key, masters={self.client}, auto_release_time=lease)
        got = lock.acquire(timeout=wait) if wait else lock.acquire(blocking=False)
        return lock if got else None

    def release(self, grant: Any) -> None:
        from pottery import ReleaseUnlockedLock

        try:
            grant.release()
        except ReleaseUnlockedLock as error:
            raise Lost(str(error)) from error


class RedisSemaphore(Blocking):
    def acquire(self, wait: float) -> Any:
        import redis_semaphore

        semaphore = redis_semaphore.Semaphore(
            self.client,
            self.place.limit,
            namespace=self.place.name,
            stale_client_timeout=self.place.lease,
            blocking=wait > 0,
        )
        try:
            semaphore.acquire(timeout=wait)
        except redis_semaphore.NotAvailable:
            return None
        return semaphore

    def release(self, grant: Any) -> None:
        if not grant.has_lock():
            raise Lost("it is not held")
        grant.release()


class AsyncRedisRateLimiters(Adapter):
    def __init__(self, place: Place) -> None:
        super().__init__(place)
        self._loop = Loop()
        self._manager: Any = None

    async def aacquire(self, wait: float) -> Any:
        from async_redis_rate_limiters import DistributedSemaphoreManager

        if self._manager is None:
            url, lease = self.place.url, int(self.place.lease)
            self._manager = DistributedSemaphoreManager(redis_url=url, redis_ttl=lease)
        semaphore = self._manager.get_semaphore(self.place.name, self.place.limit)
        try:
            await asyncio.wait_for(semaphore.__aenter__(), max(wait, 0.05))
        except asyncio.TimeoutError:
            return None
        return semaphore

    def acquire(self, wait: float) -> Any:
        return self._loop.run(self.aacquire(wait))

    def release(self, grant: Any) -> None:
        self._loop.run(grant.__aexit__(None, None, None))


class Steindamm(Blocking):
    def _options(self, wait: float) -> dict[str, Any]:
        place = self.place
        return {
            "name": place.name,
            "capacity": place.limit,
            "expiry": int(place.lease),
            "max_sleep": max(wait, 0.01),  # 0 is for ever
        }

    def acquire(self, wait: float) -> Any:
        from steindamm import SyncSemaphore
        from steindamm.exceptions import MaxSleepExceededError

        semaphore = SyncSemaphore.create(connection=self.client, **self._options(wait))
        try:
            semaphore.__enter__()
        except MaxSleepExceededError:
            return None
        return semaphore

    async def aacquire(self, wait: float) -> Any:
        from steindamm import AsyncSemaphore

        client = redis.asyncio.Redis.from_url(
            self.place.url, max_connections=5000, socket_timeout=35
        )
        semaphore = AsyncSemaphore.create(connection=client, **self._options(wait))
        await semaphore.__aenter__()
        return semaphore

    def release(self, grant: Any) -> None:
        grant.__exit__(None, None, None)


class DjangoSmartRatelimit(Request):
    """Its decorator never waits: a client that was refused asks again."""

    def __init__(self, place: Place) -> None:
        super().__init__(place)
        from django.conf import settings

        settings.RATELIMIT_BACKEND = "redis"
        settings.RATELIMIT_REDIS = {"url": place.url}

    def limited(self, view: Any, wait: float) -> Any:
        from django_smart_ratelimit import concurrency_limit

        limit, lease = self.place.limit, int(self.place.lease)
        name = self.place.name
        return concurrency_limit(key=lambda *_: name, max_concurrent=limit, ttl=lease)(view)

    def acquire(self, wait: float) -> Any:
        return asked_again(lambda: super(DjangoSmartRatelimit, self).acquire(0), wait)

    def refused(self, answer: Any) -> None:
        if isinstance(answer, HttpResponse) and answer.status_code == 429:
            return None
        return super().refused(answer)


class CacheAdd(Adapter):
    """Django's cache.add and cache.delete, as recipes for tasks have it."""

    def __init__(self, place: Place) -> None:
        super().__init__(place)
        from .ours import setup

        setup(place)

    def acquire(self, wait: float) -> Any:
        from django.core.cache import cache

        name, lease = self.place.name, self.place.lease
        return asked_again(lambda: cache.add(name, "taken", lease) or None, wait)

    def release(self, grant: Any) -> None:
        from django.core.cache import cache

        cache.delete(self.place.name)


class PostgresAdvisory(Adapter):
    """A session's advisory lock: it lives as long as its connection, which ends with an error."""

    def __init__(self, place: Place) -> None:
        super().__init__(place)
        self._connection: Any = None

    def _run(self, *words: Any) -> Any:
        import psycopg

        if self._connection is None:
            self._connection = psycopg.connect(self.place.postgres, autocommit=True)
        return self._connection.execute(*words)

    def acquire(self, wait: float) -> Any:
        import psycopg

        try:
            self._run(f"SET lock_timeout = {max(1, int(wait * 1000))}")
            self._run("SELECT pg_advisory_lock(hashtext(%s))", [self.place.name])
        except psycopg.errors.LockNotAvailable:
            return None
        except BaseException:
            connection, self._connection = self._connection, None
            if connection is not None:
                connection.close()
            raise
        return True

    def release(self, grant: Any) -> None:
        done = self._run("SELECT pg_advisory_unlock(hashtext(%s))", [self.place.name])
        if done.fetchone() != (True,):
            raise Lost("it is not held")
