"""Locks that prove that the exam works: a correct one, and variants that must fail.

Each fault has a control, which is a variant with a defect, here or in right.lua. The fault must
find one of the given kinds of findings in it. `python -m exam --self` runs the controls, and puts
the correct locks to every fault.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
import time
import uuid
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import redis
import redis.asyncio
from redis.backoff import NoBackoff
from redis.retry import Retry

from .adapter import ALL, Adapter, Lost, Place

SCRIPT = Path(__file__).with_name("right.lua").read_text(encoding="utf-8")


@dataclass
class Grant:
    token: str
    number: int
    sent: float  # the lease ends at this time plus its duration, or later
    pid: int
    ended: threading.Event


class Right(Adapter):
    """A fair, fenced semaphore with renewed leases. Its waiters poll every few milliseconds."""

    claims = replace(ALL, within=2)
    defects: tuple[str, ...] = ()
    #: The trials of `faults` must each find one of these kinds of findings. If there are no kinds,
    #: no fault may find anything.
    kinds: tuple[str, ...] = ()
    faults: tuple[str, ...] = ()

    def __init__(self, place: Place) -> None:
        super().__init__(place)
        patience = 10 if "counts-from-reply" in self.defects else 3
        retry = Retry(NoBackoff(), 0)
        self.client = redis.Redis.from_url(place.url, socket_timeout=patience, retry=retry)
        self.keys = [f"{place.name}:{part}" for part in ("leases", "queue", "seen", "fence")]
        defects = f"'{' '.join(self.defects)}'"
        self.scripts = {
            what: self.client.register_script(
                f"local what, defects = '{what}', {defects}\n{SCRIPT}"
            )
            for what in ("acquire", "renew", "release")
        }
        with contextlib.suppress(redis.RedisError):
            for script in self.scripts.values():
                self.client.script_load(script.script)

    def words(self, token: str) -> list[Any]:
        """Return the arguments of the script."""
        lease = int(self.place.lease * 1000)
        return [token, self.place.limit, lease, int(time.time() * 1000)]

    def run(self, what: str, token: str) -> int:
        script, words = self.scripts[what], self.words(token)
        if {"no-fallback", f"no-fallback-to-{what}"} & {*self.defects}:
            return int(self.client.evalsha(script.sha, 4, *self.keys, *words))
        return int(script(self.keys, words))

    def retried(self, what: str, token: str, seconds: float) -> int:
        end = time.monotonic() + seconds
        while True:
            try:
                return self.run(what, token)
            except redis.RedisError:
                if time.monotonic() > end:
                    raise
                time.sleep(0.05)

    def acquire(self, wait: float) -> Grant | None:
        end = time.monotonic() + wait * (6 if "hangs" in self.defects else 1)
        token = uuid.uuid4().hex
        if "pid-owner" in self.defects:
            token = f"{os.getpid()}"
        if "object-owner" in self.defects:
            token = f"{os.getpid()} {id(self)}"
        try:
            while True:
                sent, number = time.monotonic(), 0
                try:
                    number = self.run("acquire", token)
                except redis.RedisError:
                    if "no-fallback" in self.defects:
                        raise
                    if "lets-in" in self.defects:
                        return self.granted(token, 1, sent)
                    if "new-tokens" in self.defects:
                        token = uuid.uuid4().hex
                    time.sleep(0.05)
                if number and self.held(grant := self.granted(token, number, sent)):
                    return grant
                if time.monotonic() >= end:
                    if "stays-in-line" not in self.defects:
                        self.retried("release", token, 2)
                    return None
                self.pause()
        except BaseException:
            if "leaves-grants" not in self.defects:
                with contextlib.suppress(redis.RedisError):
                    self.retried("release", token, 2)
            raise

    def pause(self) -> None:
        """Wait between two tries."""
        if "subscribes-late" not in self.defects:
            return time.sleep(0.02)
        with self.client.pubsub() as channel:
            channel.subscribe(self.keys[0])
            for _ in ("the confirmation", "a notification"):
                channel.get_message(timeout=4)

    def granted(self, token: str, number: int, sent: float) -> Grant:
        if "leaves-grants" in self.defects:
            time.sleep(0.02)
        if "two-steps" in self.defects:
            self.client.zadd(self.keys[0], {token: (time.time() + self.place.lease) * 1000})
        if "counts-from-reply" in self.defects:
            sent = time.monotonic()
        grant = Grant(token, number, sent, os.getpid(), threading.Event())
        if "never-renews" in self.defects:
            return grant
        try:
            threading.Thread(target=self.renew, args=(grant,), daemon=True).start()
        except RuntimeError:
            if "leaves-grants" in self.defects:
                raise
        if "fork-renews" in self.defects:
            child = threading.Thread(target=self.renew, args=(grant,), daemon=True)
            os.register_at_fork(after_in_child=child.start)
        return grant

    def renew(self, grant: Grant) -> None:
        while not grant.ended.wait(self.place.lease / 4):
            sent = time.monotonic()
            try:
                if self.run("renew", grant.token):
                    grant.sent = sent
                elif "never-tells" not in self.defects:
                    return
            except redis.RedisError:
                if "ends-at-error" in self.defects:
                    return

    def held(self, grant: Grant) -> bool:
        if {"never-tells", "never-renews"} & {*self.defects}:
            return True
        return time.monotonic() < grant.sent + self.place.lease * 0.9

    def fence(self, grant: Grant) -> float:
        return float(grant.number)

    def release(self, grant: Grant) -> None:
        if grant.pid != os.getpid() and "fork-releases" not in self.defects:
            return
        if "forgets-release" in self.defects:
            with contextlib.suppress(redis.RedisError):
                self.run("release", grant.token)
                grant.ended.set()
            return
        grant.ended.set()
        if "get-compare-del" in self.defects:
            if self.client.zscore(self.keys[0], grant.token):
                self.client.delete(self.keys[0])
            return
        try:
            released = self.run("release", grant.token)
        except redis.RedisError:  # the first request may have released the lease
            released = self.retried("release", grant.token, self.place.lease) or 1
        if not released:
            raise Lost("its lease ended")

    async def aacquire(self, wait: float) -> Any:
        """Take a lease that is not renewed."""
        client, script = (
            redis.asyncio.Redis.from_url(self.place.url),
            self.scripts["acquire"].script,
        )
        words, end = self.words(uuid.uuid4().hex), time.monotonic() + wait
        while time.monotonic() < end:
            if number := await client.eval(script, 4, *self.keys, *words):
                return Grant(words[0], number, time.monotonic(), os.getpid(), threading.Event())
            await asyncio.sleep(0.02)
        return None


#: Correct locks, and one with each defect.
CONTROLS: dict[str, type[Right]] = {}


def _control(name: str, kinds: str = "", faults: str = "", defects: str = "", **more: Any) -> None:
    words = {"kinds": kinds, "faults": faults, "defects": defects or name}
    lists = {key: tuple(text.split(", ")) if text else () for key, text in words.items()}
    CONTROLS[name] = type(name, (Right,), {"title": name, **lists, **more})


_STUCK = "never free again, free but not granted"
_UNTOLD = "two inside, never told, told late"
_REFUSED, _LOST = "refused though free", "lost without reason"

# fmt: off
_control("right")
_control("right-at-two", limit=2)
_control("newest-first", "order broken", "line")
_control("two-steps", _UNTOLD, "storm")
_control("hangs", "came back late", "time-up")
_control("stays-in-line", _STUCK, "time-up", "stays-in-line, keeps-waiters")
_control("never-renews", _UNTOLD, "long-work")
_control("endless", _STUCK, "chaos, killed, loop-ended")
_control("one-end", _REFUSED, "one-killed", limit=2)
_control("revives", f"{_UNTOLD}, {_STUCK}", "stopped", "revives, never-tells")
_control("takes-over", _LOST, "stopped")
_control("fork-releases", _UNTOLD, "forked")
_control("fork-renews", _STUCK, "fork-killed")
_control("releases-any", _UNTOLD, "second-release, late-release, release-doubled")
_control("releases-any-at-two", _UNTOLD, "release-unanswered", "releases-any", limit=2)
_control("pid-owner", _UNTOLD, "one-process")
_control("object-owner", _UNTOLD, "one-process", shared=True)
_control("keeps-waiters", _STUCK, "waiter-killed, crowd-killed")
_control("leaves-grants", _STUCK, "signal, no-thread", "leaves-grants, endless")
_control("new-tokens", _STUCK, "reply-lost", "new-tokens, endless")
_control("new-tokens-at-two", _REFUSED, "reply-lost", "new-tokens, endless", limit=2)
_control("counts-from-reply", _UNTOLD, "reply-late")
_control("takes-twice", _STUCK, "doubled", "takes-twice, endless")
_control("forgets-release", _STUCK, "release-lost")
_control("get-compare-del", _UNTOLD, "release-late")
_control("subscribes-late", _STUCK, "waiter-late")
_control("never-tells", _UNTOLD,
         "silent, restarted-empty, server-stopped, clock-ahead, flushall, failover")
_control("ends-at-error", _LOST, "renewal-lost")
_control("lets-in", _UNTOLD, "server-killed, memory-full", "lets-in, endless")
_control("fence-by-clock", "fence went back", "clock-back")
_control("no-fallback", "error", "script-flush")
_control("no-fallback-to-renew", _LOST, "script-flush")
_control("client-time", _UNTOLD, "client-clock")
# fmt: on
