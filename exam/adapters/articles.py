"""Locks and semaphores that articles about Redis recommend, in a new implementation.

They retry every few milliseconds, and have a lease of LEASE seconds.
"""

from __future__ import annotations

import time
import uuid
from typing import Any

from ..adapter import LEASE, poll
from ..checker import Claims
from .peers import OnRedis


class _Polling(OnRedis):
    """A lock that calls `once()` until it returns a grant."""

    claims = Claims(lease=LEASE, punctual=True)

    def acquire(self, wait: float) -> Any:
        return poll(self.once, wait)


class SetnxExpire(_Polling):
    """A lock with SETNX and then EXPIRE. DEL releases it."""

    def once(self) -> Any:
        if not self.client.setnx(self.place.name, "taken"):
            return None
        return self.client.expire(self.place.name, int(self.place.lease))

    def release(self, grant: Any) -> None:
        self.client.delete(self.place.name)


class SetNxEx(_Polling):
    """A lock with SET NX EX and a token. A script releases it with GET, a comparison, and DEL."""

    SCRIPT = 'return redis.call("get", KEYS[1]) == ARGV[1] and redis.call("del", KEYS[1]) or 0'

    def once(self) -> Any:
        token, lease = uuid.uuid4().hex, int(self.place.lease * 1000)
        return token if self.client.set(self.place.name, token, nx=True, px=lease) else None

    def release(self, grant: Any) -> None:
        self.client.eval(self.SCRIPT, 1, self.place.name, grant)


class UnfairSortedSet(_Polling):
    """A semaphore that is a sorted set. Members are sorted by the client's time. A member with a
    rank below the limit holds a permit."""

    def once(self) -> Any:
        me, now, name = uuid.uuid4().hex, time.time(), self.place.name
        with self.client.pipeline() as pipe:
            pipe.zremrangebyscore(name, "-inf", now - self.place.lease)
            pipe.zadd(name, {me: now})
            pipe.zrank(name, me)
            if pipe.execute()[-1] < self.place.limit:
                return me
        self.client.zrem(name, me)
        return None

    def release(self, grant: Any) -> None:
        self.client.zrem(self.place.name, grant)


class FairSortedSet(_Polling):
    """A fair semaphore. A second sorted set has the members by a counter, which gives the ranks."""

    def once(self) -> Any:
        me, now, name = uuid.uuid4().hex, time.time(), self.place.name
        owners = f"{name}:owner"
        with self.client.pipeline() as pipe:
            pipe.zremrangebyscore(name, "-inf", now - self.place.lease)
            pipe.zinterstore(owners, {owners: 1, name: 0})
            pipe.incr(f"{name}:counter")
            counter = pipe.execute()[-1]
            pipe.zadd(name, {me: now})
            pipe.zadd(owners, {me: counter})
            pipe.zrank(owners, me)
            if pipe.execute()[-1] < self.place.limit:
                return me
        self.release(me)
        return None

    def release(self, grant: Any) -> None:
        with self.client.pipeline() as pipe:
            pipe.zrem(f"{self.place.name}:owner", grant)
            pipe.zrem(self.place.name, grant)
            pipe.execute()


class IncrLock(_Polling):
    """A semaphore with INCR, which takes a permit if the result is within the limit, and DECR."""

    def once(self) -> Any:
        if self.client.incr(self.place.name) <= self.place.limit:
            return self.client.expire(self.place.name, int(self.place.lease))
        self.client.decr(self.place.name)
        return None

    def release(self, grant: Any) -> None:
        self.client.decr(self.place.name)
