"""Locks that show that the exam works: one that is right, and variants that must fail.

Each fault has a control: a variant with one defect, which that fault must convict for one of the
kinds given. `python -m exam --self` runs them, and puts the right lock to every fault.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
import time
import uuid
from dataclasses import dataclass
from typing import Any, ClassVar

import redis
import redis.asyncio
from redis.backoff import NoBackoff
from redis.retry import Retry

from .adapter import LEASE, Adapter, Lost, Place
from .checker import (
    ERROR,
    FENCE,
    HUNG,
    NEVER_FREE,
    NEVER_TOLD,
    NOT_GIVEN,
    ORDER,
    TOLD_LATE,
    TWO_INSIDE,
    Claims,
)

ACQUIRE = """
local leases, queue, seen, fence = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local token, limit, lease = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
redis.call('ZREMRANGEBYSCORE', leases, '-inf', now)
for _, gone in ipairs(redis.call('ZRANGEBYSCORE', seen, '-inf', now - 1500)) do
    redis.call('ZREM', queue, gone)
    redis.call('ZREM', seen, gone)
end
local number = math.max((tonumber(redis.call('GET', fence)) or 0) + 1, now)
if not redis.call('ZSCORE', leases, token) then
    redis.call('ZADD', seen, now, token)
    if not redis.call('ZSCORE', queue, token) then
        redis.call('ZADD', queue, number, token)
    end
    if redis.call('ZRANK', queue, token) >= limit - redis.call('ZCARD', leases) then
        redis.call('SET', fence, string.format('%.0f', number))
        return 0
    end
    redis.call('ZREM', queue, token)
    redis.call('ZREM', seen, token)
    redis.call('ZADD', leases, now + lease, token)
end
redis.call('SET', fence, string.format('%.0f', number))
return number
"""
RENEW = """
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
if (tonumber(redis.call('ZSCORE', KEYS[1], ARGV[1])) or 0) <= now then return 0 end
redis.call('ZADD', KEYS[1], now + ARGV[3], ARGV[1])
return 1
"""
RELEASE = """
redis.call('ZREM', KEYS[2], ARGV[1])
redis.call('ZREM', KEYS[3], ARGV[1])
return redis.call('ZREM', KEYS[1], ARGV[1])
"""


class Grant:
    def __init__(self, token: str, number: int, sent: float) -> None:
        self.token, self.number, self.sent = token, number, sent
        self.pid, self.ended = os.getpid(), threading.Event()


class Right(Adapter):
    """A fair, fenced semaphore with renewed leases, whose waiters ask again every few ms."""

    title = "right"
    claims = Claims(
        lease=LEASE,
        renewed=True,
        fair=True,
        fenced=True,
        told=True,
        punctual=True,
        retries=True,
        forks=True,
        within=2,
    )
    #: What a variant changes: words in the scripts, and the behavior of the client.
    scripts: ClassVar[dict[str, str]] = {}
    defect = ""
    patience = 3.0

    def __init__(self, place: Place) -> None:
        super().__init__(place)
        self.client = redis.Redis.from_url(
            place.url, socket_timeout=self.patience, retry=Retry(NoBackoff(), 0)
        )
        self.scripts_of = {
            one: self.client.register_script(self._changed(one))
            for one in (ACQUIRE, RENEW, RELEASE)
        }
        for script in self.scripts_of.values():
            with contextlib.suppress(redis.RedisError):
                self.client.script_load(script.script)
        self.keys = [f"{place.name}:{part}" for part in ("leases", "queue", "seen", "fence")]

    @classmethod
    def _changed(cls, script: str) -> str:
        for old, new in cls.scripts.items():
            script = script.replace(old, new)
        return script

    def run(self, script: str, token: str) -> int:
        words = [token, self.place.limit, int(self.place.lease * 1000), int(time.time() * 1000)]
        if self.defect == "evalsha without fallback":
            digest = self.scripts_of[script].sha
            return int(self.client.evalsha(digest, 4, *self.keys, *words))  # type: ignore[arg-type]
        return int(self.scripts_of[script](self.keys, words))

    def retried(self, script: str, token: str, seconds: float) -> int:
        end = time.monotonic() + seconds
        while True:
            try:
                return self.run(script, token)
            except redis.RedisError:
                if time.monotonic() > end:
                    raise
                time.sleep(0.05)

    def acquire(self, wait: float) -> Grant | None:
        end = time.monotonic() + wait * (6 if self.defect == "hangs" else 1)
        token = f"{os.getpid()}" if self.defect == "owner is a pid" else uuid.uuid4().hex
        try:
            while True:
                sent = time.monotonic()
                try:
                    number = self.run(ACQUIRE, token)
                except redis.RedisError:
                    if self.defect == "evalsha without fallback":
                        raise
                    if self.defect == "lets in on errors":
                        return self.granted(token, 1, sent)
                    if self.defect == "a new token for each try":
                        token = uuid.uuid4().hex
                    number = 0
                    time.sleep(0.05)
                grant = self.granted(token, number, sent) if number else None
                if grant is not None and self.held(grant):
                    return grant
                if time.monotonic() >= end:
                    self.retried(RELEASE, token, 2)
                    return None
                time.sleep(0.02)
        except BaseException:
            if self.defect != "leaves grants behind":
                with contextlib.suppress(redis.RedisError):
                    self.retried(RELEASE, token, 2)
            raise

    def granted(self, token: str, number: int, sent: float) -> Grant:
        if self.defect == "leaves grants behind":
            time.sleep(0.02)
        if self.defect == "counts from the reply":
            sent = time.monotonic()
        grant = Grant(token, number, sent)
        if self.defect == "never renews":
            return grant
        try:
            threading.Thread(target=self.renew, args=(grant,), daemon=True).start()
        except RuntimeError:
            if self.defect == "leaves grants behind":
                raise
        if self.defect == "renews in a fork":
            child = threading.Thread(target=self.renew, args=(grant,), daemon=True)
            os.register_at_fork(after_in_child=child.start)
        return grant

    def renew(self, grant: Grant) -> None:
        while not grant.ended.wait(self.place.lease / 4):
            sent = time.monotonic()
            with contextlib.suppress(redis.RedisError):
                if self.run(RENEW, grant.token):
                    grant.sent = sent
                elif self.defect != "never tells":
                    return

    def held(self, grant: Grant) -> bool:
        if self.defect in ("never tells", "never renews"):
            return True
        return time.monotonic() < grant.sent + self.place.lease * 0.9

    def fence(self, grant: Grant) -> float:
        return float(grant.number)

    def release(self, grant: Grant) -> None:
        if grant.pid != os.getpid() and self.defect != "a fork releases":
            return
        if self.defect == "forgets to release":
            with contextlib.suppress(redis.RedisError):
                self.run(RELEASE, grant.token)
                grant.ended.set()
            return
        grant.ended.set()
        if self.defect == "looks, then deletes":
            if self.client.zscore(self.keys[0], grant.token):
                self.client.delete(self.keys[0])
            return
        try:
            released = self.run(RELEASE, grant.token)
        except redis.RedisError:  # the first try may have released it
            released = self.retried(RELEASE, grant.token, self.place.lease) or 1
        if not released:
            raise Lost("its lease ended")

    async def aacquire(self, wait: float) -> Any:
        """Take a lease that is not renewed."""
        client = redis.asyncio.Redis.from_url(self.place.url)
        script, token = client.register_script(self._changed(ACQUIRE)), uuid.uuid4().hex
        words = [token, self.place.limit, int(self.place.lease * 1000), int(time.time() * 1000)]
        end = time.monotonic() + wait
        while time.monotonic() < end:
            if number := await script(self.keys, words):
                return Grant(token, int(number), time.monotonic())
            await asyncio.sleep(0.02)
        return None


class RightAtTwo(Right):
    title = "right, at a limit of two"
    limit = 2


class CountedLock(Right):
    """INCR takes and DECR releases, as in articles; a release that arrives twice makes room."""

    claims = Claims(lease=LEASE, punctual=True)

    def acquire(self, wait: float) -> Any:
        end = time.monotonic() + wait
        while time.monotonic() < end:
            if self.client.incr(self.place.name) <= self.place.limit:
                self.client.pexpire(self.place.name, int(self.place.lease * 1000))
                return Grant("", 1, 0)
            self.client.decr(self.place.name)
            time.sleep(0.02)
        return None

    def release(self, grant: Grant) -> None:
        try:
            self.client.decr(self.place.name)
        except redis.RedisError:
            self.client.decr(self.place.name)


class TwoSteps(Right):
    """It looks whether there is room, and then takes it."""

    def run(self, script: str, token: str) -> int:
        if script is not ACQUIRE:
            return super().run(script, token)
        if self.client.zcard(self.keys[0]) >= self.place.limit:
            return 0
        time.sleep(0.001)
        self.client.zadd(self.keys[0], {token: time.time() * 1000 + self.place.lease * 1000})
        return self.client.incr(self.keys[3])


#: These must never be accused.
RIGHT: dict[str, type[Right]] = {"right": Right, "right-at-two": RightAtTwo}


@dataclass(frozen=True)
class Control:
    """A broken lock, the findings for which it has to be convicted, and the faults that do it."""

    lock: type[Right]
    kinds: tuple[str, ...]
    faults: tuple[str, ...]


def _control(
    kinds: tuple[str, ...], faults: str, defect: str, base: type[Right] = Right, **attributes: Any
) -> Control:
    words = {"title": defect, "defect": defect, **attributes}
    return Control(type(base.__name__, (base,), words), kinds, tuple(faults.split()))


_STUCK = (NEVER_FREE, NOT_GIVEN)
_UNTOLD = (TWO_INSIDE, NEVER_TOLD, TOLD_LATE)

# What variants change in the scripts.
_ENDLESS = {"redis.call('ZREMRANGEBYSCORE', leases, '-inf', now)": ""}
_NEWEST_FIRST = {"'ZRANK', queue": "'ZREVRANK', queue"}
_REVIVES = {"if (tonumber(redis.call('ZSCORE', KEYS[1], ARGV[1])) or 0) <= now": "if nil"}
_RELEASES_ANY = {"redis.call('ZREM', KEYS[1], ARGV[1])": "#redis.call('ZPOPMIN', KEYS[1])"}
_KEEPS_WAITERS = {"now - 1500": "0"}
_TAKES_TWICE = {
    **_ENDLESS,
    "local number =": """if redis.call('ZSCORE', leases, token) then
        redis.call('ZADD', leases, now, token .. ' again')
    end
    local number =""",
}
_FENCE_IS_TIME = {"math.max((tonumber(redis.call('GET', fence)) or 0) + 1, now)": "now"}
_CLIENTS_TIME = {"time[1] * 1000 + math.floor(time[2] / 1000)": "tonumber(ARGV[4])"}
_AFTER_LOSS = "silent restarted-empty server-stopped clock-ahead flushall failover"

CONTROLS = {
    "newest-first": _control((ORDER,), "line", "newest first", scripts=_NEWEST_FIRST),
    "two-steps": _control(_UNTOLD, "storm", "looks, then takes", TwoSteps),
    "hangs": _control((HUNG,), "time-up", "hangs"),
    "never-renews": _control(_UNTOLD, "long-work", "never renews"),
    "endless": _control(_STUCK, "chaos killed loop-ended", "keeps the dead", scripts=_ENDLESS),
    "revives": _control((*_UNTOLD, *_STUCK), "stopped", "never tells", scripts=_REVIVES),
    "fork-releases": _control(_UNTOLD, "forked", "a fork releases"),
    "fork-renews": _control(_STUCK, "fork-killed", "renews in a fork"),
    "releases-any": _control(
        _UNTOLD, "second-release late-release", "releases any", scripts=_RELEASES_ANY
    ),
    "pid-owner": _control(_UNTOLD, "one-process", "owner is a pid"),
    "keeps-waiters": _control(
        _STUCK, "waiter-killed crowd-killed", "keeps dead waiters", scripts=_KEEPS_WAITERS
    ),
    "leaves-grants": _control(_STUCK, "signal no-thread", "leaves grants behind", scripts=_ENDLESS),
    "new-tokens": _control(_STUCK, "reply-lost", "a new token for each try", scripts=_ENDLESS),
    "counts-from-reply": _control(_UNTOLD, "reply-late", "counts from the reply", patience=10.0),
    "takes-twice": _control(_STUCK, "doubled", "takes for each request", scripts=_TAKES_TWICE),
    "forgets-release": _control(_STUCK, "release-lost", "forgets to release"),
    "counted": _control(_UNTOLD, "release-unanswered release-doubled", "counts", CountedLock),
    "get-compare-del": _control(_UNTOLD, "release-late", "looks, then deletes"),
    "never-tells": _control(_UNTOLD, _AFTER_LOSS, "never tells"),
    "lets-in": _control(
        _UNTOLD, "server-killed memory-full", "lets in on errors", scripts=_ENDLESS
    ),
    "fence-by-clock": _control((FENCE,), "clock-back", "fence by clock", scripts=_FENCE_IS_TIME),
    "no-fallback": _control((ERROR,), "script-flush", "evalsha without fallback"),
    "client-time": _control(_UNTOLD, "client-clock", "time of the client", scripts=_CLIENTS_TIME),
}
