"""Adapters of other libraries. They use each library as its documentation shows: see locks.ini.

If a library waits inside one Redis command, its client has no socket timeout. If a library promises
a lease, the lease duration is LEASE. Other options are those of the library's documentation.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
import uuid
from collections.abc import Coroutine
from typing import Any
from urllib.parse import urlsplit

import redis
import redis.asyncio

from ..adapter import LEASE, Adapter, Place, lost_if, poll
from ..checker import Promises


class OnRedis(Adapter):
    """A lock that uses one Redis client."""

    options: dict[str, Any] = {}
    #: True if the library's documentation shows `from_url()`, whose clients never retry.
    by_url = False

    def __init__(self, place: Place) -> None:
        super().__init__(place)
        self.client = self.connect(redis.Redis)

    def connect(self, kind: Any) -> Any:
        if self.by_url:
            return kind.from_url(self.place.url, **self.options)
        where = urlsplit(self.place.url)
        return kind(host=where.hostname, port=where.port, **self.options)

    def release(self, grant: Any) -> None:
        grant.__exit__(None, None, None)


class RedisPy(OnRedis):
    def acquire(self, wait: float) -> Any:
        lock = self.client.lock(self.place.name, timeout=self.place.lease)
        return lock if lock.acquire(blocking_timeout=wait) else None

    def release(self, grant: Any) -> None:
        with lost_if(redis.exceptions.LockError):
            grant.release()

    async def aacquire(self, wait: float) -> Any:
        lock = self.connect(redis.asyncio.Redis).lock(self.place.name, timeout=self.place.lease)
        return lock if await lock.acquire(blocking_timeout=wait) else None


class PythonRedisLock(OnRedis):
    """A lock whose `with` statement waits without limit. If `wait` is at most 1 s, the adapter
    calls `acquire(timeout=1)` instead, because the lock accepts only whole seconds."""

    def acquire(self, wait: float) -> Any:
        name, lease = self.place.name, int(self.place.lease)
        lock = self.library.Lock(self.client, name=name, expire=lease, auto_renewal=True)
        if wait <= 1:
            return lock if lock.acquire(timeout=1) else None
        return lock.__enter__()

    def release(self, grant: Any) -> None:
        with lost_if(self.library.NotAcquired):
            super().release(grant)


class Pottery(OnRedis):
    by_url = True

    def acquire(self, wait: float) -> Any:
        name, lease = self.place.name, self.place.lease
        lock = self.library.Redlock(key=name, masters={self.client}, auto_release_time=lease)
        return lock if lock.acquire(timeout=wait) else None

    def release(self, grant: Any) -> None:
        with lost_if(self.library.ReleaseUnlockedLock):
            grant.release()


class RedisSemaphore(OnRedis):
    """A semaphore that promises no lease. Its `with` statement waits without limit."""

    options = {"socket_timeout": None}

    def acquire(self, wait: float) -> Any:
        limit, name = self.place.limit, self.place.name
        return self.library.Semaphore(self.client, count=limit, namespace=name).__enter__()


class Steindamm(OnRedis):
    """A semaphore with an option `expiry`. According to the library's README, this option is for
    keys without activity, not for holders that died."""

    options, by_url = {"socket_timeout": None}, True

    def _made(self, kind: Any, client: Any, wait: float) -> Any:
        place = {"name": self.place.name, "capacity": self.place.limit}
        longest = max(wait, 0.01)  # with max_sleep=0, the wait would have no limit
        return kind.create(connection=client, max_sleep=longest, expiry=60, **place)

    def acquire(self, wait: float) -> Any:
        from steindamm.exceptions import MaxSleepExceededError

        with contextlib.suppress(MaxSleepExceededError):
            semaphore = self._made(self.library.SyncSemaphore, self.client, wait)
            semaphore.__enter__()
            return semaphore

    async def aacquire(self, wait: float) -> Any:
        semaphore = self._made(self.library.AsyncSemaphore, self.connect(redis.asyncio.Redis), wait)
        await semaphore.__aenter__()
        return semaphore


class OnLoop(Adapter):
    """A lock for async code. The first call starts a thread with an event loop. This event loop
    runs the coroutines of all calls."""

    _loop: asyncio.AbstractEventLoop | None = None

    def acquire(self, wait: float) -> Any:
        return self.run(self.aacquire(wait))

    def run(self, body: Coroutine[Any, Any, Any]) -> Any:
        """Run a coroutine on the event loop, and return its result.

        If an exception interrupts this method, cancel the coroutine, and raise the exception. But
        if the coroutine ends before it is cancelled, return its result. The result may be a grant,
        which the caller must release."""
        if self._loop is None:
            loop = asyncio.new_event_loop()
            threading.Thread(target=loop.run_forever, daemon=True).start()
            self._loop = loop
        tasks, ended = list[asyncio.Task[Any]](), threading.Event()

        def start() -> None:
            tasks.append(self._loop.create_task(body))
            tasks[0].add_done_callback(lambda _: ended.set())

        try:
            self._loop.call_soon_threadsafe(start)
            ended.wait()
        except BaseException:
            self._loop.call_soon_threadsafe(lambda: [task.cancel() for task in tasks])
            if not ended.wait(5) or tasks[0].cancelled():
                raise
        return tasks[0].result()


class AsyncRedisRateLimiters(OnLoop):
    """A semaphore without a timeout for waiters. The adapter uses `asyncio.wait_for` instead."""

    _manager: Any = None

    async def aacquire(self, wait: float) -> Any:
        url, lease = self.place.url, int(self.place.lease)
        if self._manager is None:
            self._manager = self.library.DistributedSemaphoreManager(redis_url=url, redis_ttl=lease)
        semaphore = self._manager.get_semaphore(self.place.name, self.place.limit)
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(semaphore.__aenter__(), max(wait, 0.05))
            return semaphore

    def release(self, grant: Any) -> None:
        self.run(grant.__aexit__(None, None, None))


# Locks and semaphores that articles about Redis recommend, reimplemented here. They retry every
# 20 ms, and have a lease of LEASE seconds.


class _Polling(OnRedis):
    """A lock that polls. A subclass defines `once()`, which returns a grant or None."""

    promises = Promises(lease=LEASE, punctual=True)

    def acquire(self, wait: float) -> Any:
        self.name, self.limit, self.seconds = self.place.name, self.place.limit, self.place.lease
        return poll(self.once, wait)


class SetnxExpire(_Polling):
    """A lock that is acquired with SETNX and then EXPIRE, and released with DEL."""

    def once(self) -> Any:
        taken = self.client.setnx(self.name, "taken")
        return self.client.expire(self.name, int(self.seconds)) if taken else None

    def release(self, grant: Any) -> None:
        self.client.delete(self.name)


class SetNxEx(_Polling):
    """A lock that is acquired with SET NX EX, and released by a script that compares its token."""

    SCRIPT = 'return redis.call("get", KEYS[1]) == ARGV[1] and redis.call("del", KEYS[1]) or 0'

    def once(self) -> Any:
        token, lease = uuid.uuid4().hex, int(self.seconds * 1000)
        return token if self.client.set(self.name, token, nx=True, px=lease) else None

    def release(self, grant: Any) -> None:
        self.client.eval(self.SCRIPT, 1, self.name, grant)


class UnfairSortedSet(_Polling):
    """A semaphore in a sorted set with a member for each request. The score is the time of the
    request by the client's clock. Requests whose rank is below the limit hold a permit."""

    def once(self) -> Any:
        me, now = uuid.uuid4().hex, time.time()
        with self.client.pipeline() as pipe:
            pipe.zremrangebyscore(self.name, "-inf", now - self.seconds)
            pipe.zadd(self.name, {me: now}).zrank(self.name, me)
            if pipe.execute()[-1] < self.limit:
                return me
        return self.release(me)

    def release(self, grant: Any) -> None:
        self.client.zrem(self.name, grant)


class FairSortedSet(_Polling):
    """A fair semaphore in two sorted sets with a member for each request. The scores are times in
    one set, and numbers from a counter in the other. The lowest numbers hold the permits."""

    def once(self) -> Any:
        me, now, owners = uuid.uuid4().hex, time.time(), f"{self.name}:owner"
        with self.client.pipeline() as pipe:
            pipe.zremrangebyscore(self.name, "-inf", now - self.seconds)
            pipe.zinterstore(owners, {owners: 1, self.name: 0}).incr(f"{self.name}:counter")
            counter = pipe.execute()[-1]
            pipe.zadd(self.name, {me: now}).zadd(owners, {me: counter}).zrank(owners, me)
            if pipe.execute()[-1] < self.limit:
                return me
        return self.release(me)

    def release(self, grant: Any) -> None:
        with self.client.pipeline() as pipe:
            pipe.zrem(f"{self.name}:owner", grant).zrem(self.name, grant).execute()


class IncrLock(_Polling):
    """A semaphore that counts holders. If INCR returns no more than the limit, the caller gets a
    permit. DECR releases the permit."""

    def once(self) -> Any:
        if self.client.incr(self.name) <= self.limit:
            return self.client.expire(self.name, int(self.seconds))
        return self.release(None)

    def release(self, grant: Any) -> None:
        self.client.decr(self.name)
