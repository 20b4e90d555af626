"""Adapters of other libraries, used as their documentation shows.

`quotes` has the sentence behind each claim, and `source` the address. A library that waits inside
one command gets a client without redis-py's default timeout. The lease duration is LEASE if the
library promises a lease. Other options are those of its documentation.
"""

from __future__ import annotations

import asyncio
import threading
from typing import Any, ClassVar

import redis
import redis.asyncio

from ..adapter import LEASE, Adapter, Place, lost_if
from ..checker import Claims


class OnRedis(Adapter):
    """A lock that uses one Redis client."""

    options: ClassVar[dict[str, Any]] = {}

    def __init__(self, place: Place) -> None:
        super().__init__(place)
        self.client = redis.Redis.from_url(place.url, **self.options)


class RedisPy(OnRedis):
    title = "redis-py Lock"
    module = package = "redis"
    source = "https://redis.readthedocs.io/en/stable/lock.html, redis 8.1.0"
    claims = Claims(lease=LEASE, punctual=True)
    quotes = {
        "lease": "timeout indicates a maximum life for the lock in seconds.",
        "punctual": "blocking_timeout specifies the maximum number of seconds to wait trying to "
        "acquire the lock.",
    }

    def acquire(self, wait: float) -> Any:
        lock = self.client.lock(self.place.name, timeout=self.place.lease)
        return lock if lock.acquire(blocking_timeout=wait) else None

    def release(self, grant: Any) -> None:
        with lost_if(redis.exceptions.LockError):
            grant.release()

    async def aacquire(self, wait: float) -> Any:
        client = redis.asyncio.Redis.from_url(self.place.url)
        lock = client.lock(self.place.name, timeout=self.place.lease)
        return lock if await lock.acquire(blocking_timeout=wait) else None


class PythonRedisLock(OnRedis):
    """A lock whose `with` waits without limit. For a short wait, `acquire(timeout=...)` is used,
    which takes whole seconds."""

    title = "python-redis-lock"
    module, package = "redis_lock", "python-redis-lock"
    source = "https://pypi.org/project/python-redis-lock/4.0.1/, Troubleshooting"
    claims = Claims(lease=LEASE, renewed=True)
    quotes = {
        "lease": "turn on the auto_renewal parameter in combination with expire to set a time-out "
        "on the lock",
        "renewed": "keep renewing it automatically to ensure the lock is held for as long as the "
        "Python process is running.",
    }

    def acquire(self, wait: float) -> Any:
        name, lease = self.place.name, int(self.place.lease)
        lock = self.library.Lock(self.client, name=name, expire=lease, auto_renewal=True)
        if wait <= 1:
            return lock if lock.acquire(timeout=1) else None
        return lock.__enter__()

    def release(self, grant: Any) -> None:
        with lost_if(self.library.NotAcquired):
            grant.__exit__()


class Pottery(OnRedis):
    title = module = "pottery"
    source = "https://pypi.org/project/pottery/3.0.1/, Redlock"
    claims = Claims(lease=LEASE, punctual=True)
    quotes = {
        "lease": "Redlocks are automatically released (by default, after 10 seconds).",
        "punctual": "You can make .acquire() block but not indefinitely by specifying the timeout "
        "argument (in seconds)",
    }

    def acquire(self, wait: float) -> Any:
        name, lease = self.place.name, self.place.lease
        lock = self.library.Redlock(key=name, masters={self.client}, auto_release_time=lease)
        return lock if lock.acquire(timeout=wait) else None

    def release(self, grant: Any) -> None:
        with lost_if(self.library.ReleaseUnlockedLock):
            grant.release()


class _WaitsInside(OnRedis):
    """A semaphore whose context manager waits inside one command."""

    limit = 2
    options = {"socket_timeout": None}
    cannot = {"second-release": "it is a context manager, which ends once"}

    def release(self, grant: Any) -> None:
        grant.__exit__(None, None, None)


class RedisSemaphore(_WaitsInside):
    """A semaphore whose `with` waits without limit. Its documentation promises no lease."""

    title = "redis-semaphore"
    module, package = "redis_semaphore", "redis-semaphore"
    source = "https://pypi.org/project/redis-semaphore/0.2.2/, Examples"
    cannot = {**_WaitsInside.cannot, "time-up": "its `with` waits without end"}

    def acquire(self, wait: float) -> Any:
        limit, name = self.place.limit, self.place.name
        return self.library.Semaphore(self.client, count=limit, namespace=name).__enter__()


class Steindamm(_WaitsInside):
    """A semaphore with `expiry` as in its README: for keys without activity, not for dead
    holders."""

    title = module = "steindamm"
    source = "https://pypi.org/project/steindamm/0.11.1/, Semaphore"
    claims = Claims(punctual=True)
    quotes = {
        "punctual": "If the max_sleep limit is exceeded, a MaxSleepExceededError is raised.",
    }

    def _options(self, wait: float) -> dict[str, Any]:
        longest = max(wait, 0.01)  # 0 would mean no limit
        place = {"name": self.place.name, "capacity": self.place.limit}
        return {**place, "max_sleep": longest, "expiry": 60}

    def acquire(self, wait: float) -> Any:
        from steindamm.exceptions import MaxSleepExceededError

        create = self.library.SyncSemaphore.create
        semaphore = create(connection=self.client, **self._options(wait))
        try:
            semaphore.__enter__()
        except MaxSleepExceededError:
            return None
        return semaphore

    async def aacquire(self, wait: float) -> Any:
        client = redis.asyncio.Redis.from_url(self.place.url, socket_timeout=None)
        create = self.library.AsyncSemaphore.create
        semaphore = create(connection=client, **self._options(wait))
        await semaphore.__aenter__()
        return semaphore


class Loop:
    """An event loop in a thread, which the first call starts."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None

    def run(self, body: Any) -> Any:
        if self._loop is None:
            loop = asyncio.new_event_loop()
            threading.Thread(target=loop.run_forever, daemon=True).start()
            self._loop = loop
        future = asyncio.run_coroutine_threadsafe(body, self._loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()  # the caller was interrupted
            raise


class AsyncRedisRateLimiters(Adapter):
    """A semaphore without a timeout. `asyncio.wait_for` ends the wait."""

    title = package = "async-redis-rate-limiters"
    module = "async_redis_rate_limiters"
    source = "https://pypi.org/project/async-redis-rate-limiters/0.1.4/, Features and Usage"
    limit = 2
    claims = Claims(lease=LEASE, retries=True)
    quotes = {
        "lease": "redis_ttl=3600,  # semaphore max duration (seconds)",
        "retries": "Rock solid with Redis/Network failures (multiple attempts, exponential "
        "backoff, etc.)",
    }
    cannot = _WaitsInside.cannot

    def __init__(self, place: Place) -> None:
        super().__init__(place)
        self._loop, self._manager = Loop(), None

    async def aacquire(self, wait: float) -> Any:
        if self._manager is None:
            url, lease = self.place.url, int(self.place.lease)
            manager = self.library.DistributedSemaphoreManager
            self._manager = manager(redis_url=url, redis_ttl=lease)
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
