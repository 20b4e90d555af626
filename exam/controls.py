"""Locks that prove that the exam works: a correct one, and variants that must fail.

Each fault has a control, which is a variant with one defect. The fault must find one of the given
kinds of findings in it. `python -m exam --self` runs the controls, and puts the correct lock to
every fault.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import threading
import time
import uuid
from dataclasses import replace
from typing import Any, ClassVar

import redis
import redis.asyncio
from redis.backoff import NoBackoff
from redis.retry import Retry

from .adapter import ALL, Adapter, Lost, Place
from .adapters.articles import IncrLock

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
    """A fair, fenced semaphore with renewed leases. Its waiters poll every few milliseconds."""

    title = "right"
    claims = replace(ALL, within=2)
    #: The defect of a variant: replacements in the scripts, or a name that the client checks.
    scripts: ClassVar[dict[str, str]] = {}
    defect = ""
    #: Seconds to wait for a reply.
    patience = 3.0
    #: For a control: the kinds of findings, and the faults that must find one of them.
    kinds: tuple[str, ...] = ()
    faults: ClassVar[list[str]] = []

    def __init__(self, place: Place) -> None:
        super().__init__(place)
        self.client = redis.Redis.from_url(
            place.url, socket_timeout=self.patience, retry=Retry(NoBackoff(), 0)
        )
        for script in (ACQUIRE, RENEW, RELEASE):
            with contextlib.suppress(redis.RedisError):
                self.client.script_load(self.changed(script))
        self.keys = [f"{place.name}:{part}" for part in ("leases", "queue", "seen", "fence")]

    @classmethod
    def changed(cls, script: str) -> str:
        for old, new in cls.scripts.items():
            script = script.replace(old, new)
        return script

    def words(self, token: str) -> list[Any]:
        """Return the keys and arguments of a script."""
        lease = int(self.place.lease * 1000)
        return [*self.keys, token, self.place.limit, lease, int(time.time() * 1000)]

    def run(self, script: str, token: str) -> int:
        script, words = self.changed(script), self.words(token)
        try:
            return int(self.client.evalsha(hashlib.sha1(script.encode()).hexdigest(), 4, *words))
        except redis.exceptions.NoScriptError:
            if self.defect == "no-fallback":
                raise
            if self.defect == "renews-by-digest" and script == self.changed(RENEW):
                raise
            return int(self.client.eval(script, 4, *words))

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
        owners = {"pid-owner": f"{os.getpid()}", "object-owner": f"{os.getpid()} {id(self)}"}
        token = owners.get(self.defect) or uuid.uuid4().hex
        try:
            while True:
                sent = time.monotonic()
                try:
                    number = self.run(ACQUIRE, token)
                except redis.RedisError:
                    if self.defect == "no-fallback":
                        raise
                    if self.defect == "lets-in":
                        return self.granted(token, 1, sent)
                    if self.defect == "new-tokens":
                        token = uuid.uuid4().hex
                    number = 0
                    time.sleep(0.05)
                grant = self.granted(token, number, sent) if number else None
                if grant is not None and self.held(grant):
                    return grant
                if time.monotonic() >= end:
                    if self.defect != "stays-in-line":
                        self.retried(RELEASE, token, 2)
                    return None
                time.sleep(0.02)
        except BaseException:
            if self.defect != "leaves-grants":
                with contextlib.suppress(redis.RedisError):
                    self.retried(RELEASE, token, 2)
            raise

    def granted(self, token: str, number: int, sent: float) -> Grant:
        if self.defect == "leaves-grants":
            time.sleep(0.02)
        if self.defect == "counts-from-reply":
            sent = time.monotonic()
        grant = Grant(token, number, sent)
        if self.defect == "never-renews":
            return grant
        try:
            threading.Thread(target=self.renew, args=(grant,), daemon=True).start()
        except RuntimeError:
            if self.defect == "leaves-grants":
                raise
        if self.defect == "fork-renews":
            child = threading.Thread(target=self.renew, args=(grant,), daemon=True)
            os.register_at_fork(after_in_child=child.start)
        return grant

    def renew(self, grant: Grant) -> None:
        while not grant.ended.wait(self.place.lease / 4):
            sent = time.monotonic()
            try:
                if self.run(RENEW, grant.token):
                    grant.sent = sent
                elif self.defect != "never-tells":
                    return
            except redis.RedisError:
                if self.defect == "ends-at-error":
                    return

    def held(self, grant: Grant) -> bool:
        if self.defect in ("never-tells", "never-renews"):
            return True
        return time.monotonic() < grant.sent + self.place.lease * 0.9

    def fence(self, grant: Grant) -> float:
        return float(grant.number)

    def release(self, grant: Grant) -> None:
        if grant.pid != os.getpid() and self.defect != "fork-releases":
            return
        if self.defect == "forgets-release":
            with contextlib.suppress(redis.RedisError):
                self.run(RELEASE, grant.token)
                grant.ended.set()
            return
        grant.ended.set()
        if self.defect == "get-compare-del":
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
        words, end = self.words(uuid.uuid4().hex), time.monotonic() + wait
        while time.monotonic() < end:
            if number := await client.eval(self.changed(ACQUIRE), 4, *words):
                return Grant(words[4], int(number), time.monotonic())
            await asyncio.sleep(0.02)
        return None


class RightAtTwo(Right):
    title = "right, at a limit of two"
    limit = 2


class CountedLock(IncrLock):
    """A lock where a release that arrives twice frees a second permit."""

    limit = 1

    def release(self, grant: Any) -> None:
        try:
            super().release(grant)
        except redis.RedisError:
            super().release(grant)


class TwoSteps(Right):
    """A lock that checks whether it is free, and takes it in a second step."""

    def run(self, script: str, token: str) -> int:
        if script is not ACQUIRE:
            return super().run(script, token)
        if self.client.zcard(self.keys[0]) >= self.place.limit:
            return 0
        time.sleep(0.001)
        self.client.zadd(self.keys[0], {token: time.time() * 1000 + self.place.lease * 1000})
        return self.client.incr(self.keys[3])


class SubscribesLate(Right):
    """A lock that subscribes after its try, and tries again when it is notified."""

    def run(self, script: str, token: str) -> int:
        number = super().run(script, token)
        if script == RELEASE:
            self.client.publish(self.keys[0], token)
        if script == ACQUIRE and not number:
            with self.client.pubsub() as channel:
                channel.subscribe(self.keys[0])
                for _ in "12":  # the confirmation, and the notification
                    channel.get_message(timeout=4)
        return number


#: Correct locks. The exam must find nothing against them.
RIGHT = {"right": Right, "right-at-two": RightAtTwo}


CONTROLS: dict[str, type[Adapter]] = {}


def _control(name: str, kinds: tuple[str, ...], faults: str, **attributes: Any) -> None:
    """Add a broken lock, the kinds of findings of which one must be found, and the faults that must
    find it."""
    words = {"title": name, "defect": name, "kinds": kinds, "faults": faults.split(), **attributes}
    CONTROLS[name] = type(name, (attributes.get("base", Right),), words)


_STUCK = ("never free again", "free but not granted")
_UNTOLD = ("two inside", "never told", "told late")
_ENDLESS = {"redis.call('ZREMRANGEBYSCORE', leases, '-inf', now)": ""}
_REVIVES = {"if (tonumber(redis.call('ZSCORE', KEYS[1], ARGV[1])) or 0) <= now": "if nil"}
_RELEASES_ANY = {"redis.call('ZREM', KEYS[1], ARGV[1])": "#redis.call('ZPOPMIN', KEYS[1])"}
_TAKES_TWICE = {
    **_ENDLESS,
    "local number =": """if redis.call('ZSCORE', leases, token) then
        redis.call('ZADD', leases, now, token .. ' again')
    end
    local number =""",
}
_ONE_TTL = {
    "redis.call('ZADD', leases, now + lease, token)": """redis.call('ZADD', leases, now, token)
    for _, each in ipairs(redis.call('ZRANGE', leases, 0, -1)) do
        redis.call('ZADD', leases, now + lease, each)
    end"""
}
_FENCE_IS_TIME = {"math.max((tonumber(redis.call('GET', fence)) or 0) + 1, now)": "now"}
_CLIENTS_TIME = {"time[1] * 1000 + math.floor(time[2] / 1000)": "tonumber(ARGV[4])"}

_control("newest-first", ("order broken",), "line", scripts={"'ZRANK', queue": "'ZREVRANK', queue"})
_control("two-steps", _UNTOLD, "storm", base=TwoSteps)
_control("hangs", ("came back late",), "time-up")
_control("never-renews", _UNTOLD, "long-work")
_control("endless", _STUCK, "chaos killed loop-ended", scripts=_ENDLESS)
_control("revives", (*_UNTOLD, *_STUCK), "stopped", defect="never-tells", scripts=_REVIVES)
_control("fork-releases", _UNTOLD, "forked")
_control("fork-renews", _STUCK, "fork-killed")
_control("releases-any", _UNTOLD, "second-release late-release", scripts=_RELEASES_ANY)
_control("pid-owner", _UNTOLD, "one-process")
_control("object-owner", _UNTOLD, "one-process", shared=True)
_control("keeps-waiters", _STUCK, "waiter-killed crowd-killed", scripts={"now - 1500": "0"})
_control("leaves-grants", _STUCK, "signal no-thread", scripts=_ENDLESS)
_control("new-tokens", _STUCK, "reply-lost", scripts=_ENDLESS)
_control("counts-from-reply", _UNTOLD, "reply-late", patience=10.0)
_control("takes-twice", _STUCK, "doubled", scripts=_TAKES_TWICE)
_control("forgets-release", _STUCK, "release-lost")
_control("counted", _UNTOLD, "release-unanswered release-doubled", base=CountedLock)
_control("get-compare-del", _UNTOLD, "release-late")
_control(
    "never-tells", _UNTOLD, "silent restarted-empty server-stopped clock-ahead flushall failover"
)
_control("lets-in", _UNTOLD, "server-killed memory-full", scripts=_ENDLESS)
_control("fence-by-clock", ("fence went back",), "clock-back", scripts=_FENCE_IS_TIME)
_control("no-fallback", ("error",), "script-flush")
_control("one-ttl", ("refused though free",), "one-killed", base=RightAtTwo, scripts=_ONE_TTL)
_control("new-tokens-at-two", ("refused though free",), "reply-lost", base=RightAtTwo,
         defect="new-tokens", scripts=_ENDLESS)  # fmt: skip
_control("renews-by-digest", ("lost without reason",), "script-flush")
_control("ends-at-error", ("lost without reason",), "renewal-lost")
_control("stays-in-line", _STUCK, "time-up", scripts={"now - 1500": "0"})
_control("subscribes-late", _STUCK, "waiter-late", base=SubscribesLate)
_control("client-time", _UNTOLD, "client-clock", scripts=_CLIENTS_TIME)
